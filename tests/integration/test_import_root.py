"""What a wheel has at the import root."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

from programs import program

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]
PACKAGES: dict[str, str] = SETTINGS["packages"]
LEFT_OUT = {Path(pattern).suffix or Path(pattern).name for pattern in SETTINGS["exclude"]}
# Without native code: only where files go is looked at.
BUILD = (
    "import sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1], {'wheel.cmake': 'false'})"
)


def shipped(folder: Path) -> Iterator[str]:
    """The files of a package that a wheel has: all that git knows and that the settings do not leave out."""
    found = subprocess.run((program("git"), "ls-files"), cwd=folder, check=True, capture_output=True, text=True).stdout
    return (name for name in found.splitlines() if not {Path(name).suffix, *Path(name).parts} & LEFT_OUT)


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
    assert {*names} >= {f"{package}/{name}" for package, folder in PACKAGES.items() for name in shipped(ROOT / folder)}
