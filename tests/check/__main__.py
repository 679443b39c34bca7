"""`python -m tests.check`: lint the changed files, and run the tests that are nearest to them.

Changed is what differs from `--base`, by default the commit before this one where nothing is changed, else HEAD. The
tests run for about `--seconds`, as recorded in `durations.json` for two processes; what is left out is printed.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from tests.check.durations import UNKNOWN_S, recorded
from tests.check.nearest import near

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
_GIT = ("git",)
_PROCESSES = 2
_START_S = 6.0  # until the first test runs
_FAILED = 1
_CXX = (".cc", ".h", ".inl")


def changed_files(base: str | None) -> list[str]:
    """Return the files that differ from `base`, new ones too."""
    new = _git("ls-files", "--others", "--exclude-standard")
    found = [*_git("diff", "--name-only", base or "HEAD"), *new]
    return found if found or base else _git("diff", "--name-only", "HEAD~1")


def chosen(
    groups: Iterable[Sequence[str]], seconds: float, durations: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Return the test files that fit the time, and those that are left out; a nearer file comes first.

    A file that does not fit leaves its time to others of its group and of the next ones.
    """
    left = seconds * _PROCESSES
    taken: list[str] = []
    late: list[str] = []
    for file in dict.fromkeys(file for group in groups for file in group):
        needed = durations.get(file, UNKNOWN_S)
        (taken if needed <= left else late).append(file)
        left -= needed if needed <= left else 0.0
    return taken, late


def by_distance(files: Iterable[str]) -> Iterator[list[str]]:
    """Yield the tests that are near to the changed files, those of the first group of each file first."""
    for groups in zip_longest(*(near(ROOT, file) for file in files), fillvalue=[]):
        yield [file for group in groups for file in group]


def _lint(files: Sequence[str]) -> int:
    python = [file for file in files if file.endswith((".py", ".pyi"))]
    native = [file for file in files if file.endswith(_CXX)]
    commands = [
        *([[BIN / "ruff", "check", *python], [BIN / "ruff", "format", "--check", *python]] if python else []),
        *([[BIN / "clang-format", "--dry-run", "--Werror", *native]] if native else []),
        *([[BIN / "codespell", *files]] if files else []),
    ]
    return max((subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands), default=0)


def _git(*arguments: str) -> list[str]:
    done = subprocess.run((*_GIT, *arguments), cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.check", description=__doc__)
    parser.add_argument("--base", help="commit that the tree is compared with")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for the tests (default: 60)")
    options = parser.parse_args()
    files = changed_files(options.base)
    if not files:
        print("nothing is changed")
        return 0
    print(f"{len(files)} changed files: {', '.join(files[:8])}{', ...' if len(files) > 8 else ''}")
    if _lint([file for file in files if (ROOT / file).exists()]):
        return _FAILED
    durations = recorded()
    tests, left_out = chosen(by_distance(files), options.seconds - _START_S, durations)
    if not tests:
        print("no test is near; run `make test`")
        return 0
    command = [BIN / "pytest", "-q", "-n", str(_PROCESSES), "--dist", "worksteal", "-m", "not slow", *tests]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if left_out:
        seconds = sum(durations.get(file, UNKNOWN_S) for file in left_out) / _PROCESSES
        print(f"left out: {len(left_out)} near test files of {seconds:.0f} s, {', '.join(left_out[:6])}, ...")
    return status


if __name__ == "__main__":
    sys.exit(main())
