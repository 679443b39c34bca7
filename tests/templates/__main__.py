"""``python -m tests.templates``: chat templates of real models, and the formats that are chosen for them.

They are in llama.cpp, which llama-cpp-python's source distribution carries; pip downloads that into `build/templates`,
in an environment of its own. Each template writes a conversation in which a tool was called; the format chosen for the
template must read the call that it wrote. Prints a table; the exit status is 1 where one does not.
"""

import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from tests.templates.expected import EXPECTED, WRITE_NO_CALLS
from tests.templates.written_calls import WRITES_NO_CALL, Outcome, try_template

FOLDER = Path(__file__).resolve().parents[2] / "build" / "templates"
PACKAGE = "llama-cpp-python==0.3.36"
INSIDE = "/vendor/llama.cpp/models/templates/"


def main() -> int:
    """Try all templates."""
    templates = {path.name: path.read_text() for path in sorted(_templates().glob("*.jinja"))}
    outcomes = {name: try_template(template) for name, template in templates.items()}
    for name, outcome in outcomes.items():
        print(f"{name:58} {outcome.calls or '-':14} {outcome.thoughts or '-':12} {_verdict(name, outcome)}")
    missing = EXPECTED.keys() - templates.keys()
    for name in sorted(missing):
        print(f"{name:58} is not in {PACKAGE}")
    return int(bool(missing) or any(_verdict(name, outcome) != "right" for name, outcome in outcomes.items()))


def _verdict(name: str, outcome: Outcome) -> str:
    expected = EXPECTED.get(name, (None, None))
    if (outcome.calls, outcome.thoughts) != expected:
        return f"WRONG: {expected} is expected"
    if name in WRITE_NO_CALLS and outcome.problem == WRITES_NO_CALL:
        return "right"
    return f"WRONG: {outcome.problem}" if outcome.problem else "right"


def _templates() -> Path:
    folder = FOLDER / PACKAGE
    if not folder.exists():
        environment, download = FOLDER / "environment", FOLDER / "download"
        venv.create(environment, with_pip=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
        options = ["--no-deps", "--no-binary", ":all:", "--dest", str(download)]
        subprocess.run([*pip, "download", *options, PACKAGE], check=True)
        _unpack(next(download.glob("*.tar.gz")), folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    unfinished = folder.with_name("unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as files:
        for member in files:
            if INSIDE in member.name and member.isfile() and (content := files.extractfile(member)):
                (unfinished / Path(member.name).name).write_bytes(content.read())
    unfinished.rename(folder)


if __name__ == "__main__":
    sys.exit(main())
