"""What a wheel has at the import root."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
# Without native code: only where files go is looked at.
BUILD = (
    "import sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1], {'wheel.cmake': 'false'})"
)


def test_the_import_root_is_run_as_the_command() -> None:
    command = (sys.executable, "-m", "numaserve", "--version")
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("numaserve ") and done.stdout.count("\n") == 1


def test_a_wheel_has_the_folders_below_a_root_that_is_a_namespace(tmp_path: Path) -> None:
    subprocess.run((sys.executable, "-c", BUILD, str(tmp_path)), cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    names = ZipFile(wheel).namelist()
    assert [name for name in names if name.startswith("numaserve/") and name.count("/") == 1] == [
        "numaserve/__main__.py"
    ]
    assert {"numaserve/server/cli/main.py", "numaserve/ray/__init__.py", "numaserve/kernels/__init__.py"} <= {*names}
