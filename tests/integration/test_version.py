"""The version that the command prints, and the commit that a build records."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numaserve.server.cli.main import main
from numaserve.server.common.version import built_commit, installed_version

ROOT = Path(__file__).resolve().parents[2]
# Next to the interpreter, as `make test` installs it, or of the system.
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "cmake"
GIT = ("git", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")


def record(source: Path, out: Path, **environment: str) -> str:
    command = (CMAKE, f"-DSOURCE={source}", f"-DOUT={out}", "-P", str(ROOT / "server" / "record_commit.cmake"))
    without = {name: value for name, value in os.environ.items() if name != "NUMASERVE_COMMIT"}
    subprocess.run(command, check=True, capture_output=True, env=without | environment)
    return built_commit(out)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "file").write_text("a")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "x"), ("tag", "v1", "-m", "x")):
        subprocess.run((*GIT, *command), cwd=folder, check=True, capture_output=True)
    return folder


def head(checkout: Path) -> str:
    return subprocess.run((*GIT, "rev-parse", "HEAD"), cwd=checkout, check=True, capture_output=True, text=True).stdout


def test_a_build_records_the_commit_of_its_checkout_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "commit.txt"
    assert record(checkout, out) == head(checkout).strip(), "the id, in spite of the tag"
    assert out.read_text() == head(checkout)


def test_a_build_of_changed_files_says_so(checkout: Path, tmp_path: Path) -> None:
    (checkout / "file").write_text("b")
    assert record(checkout, tmp_path / "commit.txt") == f"{head(checkout).strip()}-dirty"


def test_sources_inside_a_checkout_of_something_else_have_no_commit(checkout: Path, tmp_path: Path) -> None:
    (checkout / "unpacked").mkdir()
    assert record(checkout / "unpacked", tmp_path / "commit.txt") == "unknown"


def test_the_environment_names_the_commit_of_a_build_without_a_checkout(tmp_path: Path) -> None:
    assert record(tmp_path, tmp_path / "a", NUMASERVE_COMMIT="abc123") == "abc123"
    assert record(tmp_path, tmp_path / "b", NUMASERVE_COMMIT="a line\nand another") == "unknown"
    assert record(tmp_path, tmp_path / "c", NUMASERVE_COMMIT="") == "unknown"


def test_the_commit_that_a_linked_checkout_records_is_no_file_of_the_checkout() -> None:
    subprocess.run((*GIT, "check-ignore", "-q", "server/commit.txt"), cwd=ROOT, check=True)


def test_the_commit_is_unknown_where_none_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert built_commit(tmp_path / "missing") == built_commit(tmp_path / "empty") == "unknown"


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_the_command_prints_version_commit_and_instruction_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMASERVE_ISA", "portable")
    assert printed(capsys) == (f"numaserve {installed_version()} (commit {built_commit()}; instruction set portable)\n")


def test_the_command_prints_its_version_where_the_kernels_cannot_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMASERVE_ISA", "sse9")
    start = f"numaserve {installed_version()} (commit {built_commit()}; no instruction set: "
    assert printed(capsys).startswith(start)


def test_the_start_of_the_command_loads_nothing_for_the_version() -> None:
    code = "import sys, numaserve.server.cli.main; print('numaserve.kernels' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run((sys.executable, "-c", code), check=True, capture_output=True, text=True)
    assert done.stdout == "False False\n"


def test_the_modules_of_one_command_are_not_imported_for_another() -> None:
    code = """
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules), sep="\\n"))
from numaserve.server.cli.main import main
main(["serve", "/nowhere/at/all", "--port", "0"])
"""
    done = subprocess.run((sys.executable, "-c", code), check=False, capture_output=True, text=True)
    modules = done.stdout.split()
    assert "numaserve.server.cli.serve" in modules
    assert not {"numaserve.server.cli.bench", "numaserve.server.cli.top", "rich", "numpy"} & {*modules}
