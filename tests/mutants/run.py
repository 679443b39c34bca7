"""Run the tests of one or more checkouts on mutants of one product."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.check.choice import choice
from tests.check.nearest import nearest
from tests.mutants.sites import Mutant

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Suite:
    """Tests of a checkout, by a name for the report: all tests, or those that `make check` runs for a mutant's file."""

    name: str
    root: Path
    check_only: bool = False

    def parts(self, mutant: Mutant) -> Iterator[list[str]]:
        """Yield tests to run one after the other, the nearest first, see `tests.check.nearest`."""
        if not self.check_only:
            yield from nearest(self.root, mutant.file)
        elif tests := choice(self.root, [mutant.file])[0]:
            yield tests


@dataclass(frozen=True)
class Tree:
    """A checkout whose product is installed in its .venv."""

    root: Path

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[bool]:
        """Install the mutant, and the product as it was afterwards. Whether it could be built."""
        path = self.root / mutant.file
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        lines[mutant.line - 1] = mutant.becomes + "\n"
        try:
            path.write_text("".join(lines))
            yield self._install(mutant)
        finally:
            path.write_text(text)
            self._install(mutant)

    def is_stale(self, mutant: Mutant) -> bool:
        """Return whether the line of the mutant has moved or changed since it was drawn."""
        return (self.root / mutant.file).read_text().splitlines()[mutant.line - 1 : mutant.line] != [mutant.was]

    def _install(self, mutant: Mutant) -> bool:
        if mutant.file.endswith(".py"):
            return True  # the environment runs the checkout itself
        command = ["make", ".venv/.stamps/native-test"]
        return subprocess.run(command, cwd=self.root, stdout=subprocess.DEVNULL, check=False).returncode == 0

    def pytest(self, suite: Suite, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Return the exit status and what was printed; None and nothing where the time was up."""
        options = ["-q", "-x", "-n", "2", "--dist", "worksteal", "-m", "not slow", "-p", "no:cacheprovider"]
        process = subprocess.Popen(
            [str(self.root / ".venv/bin/pytest"), *options, *arguments],
            cwd=suite.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=max(seconds, 1.0))
            return process.returncode, out
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:  # the time is up, or this run is ended
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def run(tree: Tree, suites: Sequence[Suite], mutants: Sequence[tuple[int, Mutant]], out: Path, minutes: float) -> int:
    """Run every suite on every mutant, and write a line for each pair. 1 where a mutant survived."""
    if stale := [number for number, mutant in mutants if tree.is_stale(mutant)]:
        sys.exit(f"the lines of mutants {stale} have changed; run `python -m tests.mutants renew` and commit the list")
    survived = 0
    for number, mutant in mutants:
        with tree.with_mutant(mutant) as built:
            for suite in suites:
                begun = time.monotonic()
                verdict, by = _verdict(tree, suite, mutant, minutes) if built else ("killed", "the compiler")
                survived += verdict != "killed"
                record = {"mutant": number, "suite": suite.name, "verdict": verdict, "by": by}
                record |= {"seconds": round(time.monotonic() - begun), "file": mutant.file, "line": mutant.line}
                with out.open("a") as lines:
                    lines.write(json.dumps(record) + "\n")
                print(record, file=sys.stderr, flush=True)
    return int(survived > 0)


def _verdict(tree: Tree, suite: Suite, mutant: Mutant, minutes: float) -> tuple[str, str]:
    end = time.monotonic() + 60 * minutes
    for part in suite.parts(mutant):
        status, out = tree.pytest(suite, part, end - time.monotonic())
        if status is None:
            return "not killed in time", ""
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            found = _FAILED.search(out)
            return "killed", found[1] if found else out[-300:]
    return "survived", ""
