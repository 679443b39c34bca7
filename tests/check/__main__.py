"""`python -m tests.check`: lint the changed files, and run the tests that are nearest to them.

Changed is what differs from `--base`, by default the commit before this one where nothing is changed, else HEAD. The
tests run for about `--seconds`, as recorded in `durations.json` for two processes; what is left out is printed.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.check.choice import PROCESSES, SECONDS, choice
from tests.check.durations import UNKNOWN_S, recorded
from tests.support.trees import ROOT, git_text

BIN = Path(sys.executable).parent
_FAILED = 1
_CXX = (".cc", ".h", ".inl")


def changed_files(base: str | None) -> list[str]:
    """Return the files that differ from `base`, new ones too."""
    new = git_text("ls-files", "--others", "--exclude-standard").splitlines()
    found = [*git_text("diff", "--name-only", base or "HEAD").splitlines(), *new]
    return found if found or base else git_text("diff", "--name-only", "HEAD~1").splitlines()


def _lint(files: Sequence[str]) -> int:
    python = [file for file in files if file.endswith((".py", ".pyi"))]
    native = [file for file in files if file.endswith(_CXX)]
    commands = [
        *([[BIN / "ruff", "check", *python], [BIN / "ruff", "format", "--check", *python]] if python else []),
        *([[BIN / "clang-format", "--dry-run", "--Werror", *native]] if native else []),
        *([[BIN / "codespell", *files]] if files else []),
    ]
    return max((subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands), default=0)


def _listed(files: Sequence[str], most: int) -> str:
    return ", ".join([*files[:most], *(["..."] if len(files) > most else [])])


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.check", description=__doc__)
    parser.add_argument("--base", help="commit that the tree is compared with")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"time for the tests (default: {SECONDS:g})")
    options = parser.parse_args()
    files = changed_files(options.base)
    if not files:
        print("nothing is changed")
        return 0
    print(f"{len(files)} changed files: {_listed(files, 8)}")
    if _lint([file for file in files if (ROOT / file).exists()]):
        return _FAILED
    tests, left_out = choice(ROOT, files, options.seconds)
    if not tests:
        print("no test is near; run `make test`")
        return 0
    command = [BIN / "pytest", "-q", "-n", str(PROCESSES), "--dist", "worksteal", "-m", "not slow", *tests]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if left_out:
        durations = recorded()
        seconds = sum(durations.get(file, UNKNOWN_S) for file in left_out) / PROCESSES
        print(f"left out: {len(left_out)} near test files of {seconds:.0f} s: {_listed(left_out, 6)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
