"""Run tests on mutants of the product in a checkout, until one fails."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.check.choice import choice
from tests.check.nearest import nearest
from tests.mutants.table import Mutant, Sources

COMPILER = "the compiler"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
_GONE = "ERROR: not found: "  # a test that has another name now


@dataclass(frozen=True)
class Tree:
    """A checkout whose product is installed in its .venv, and the checkout whose tests are run: mostly the same one."""

    root: Path
    tests: Path
    sets: str = "native"
    processes: int = 2
    check_only: bool = False

    def parts(self, mutant: Mutant) -> Iterator[list[str]]:
        """Yield tests to run one after the other: the killer, then the nearest, see `tests.check.nearest`.

        With `check_only` these are the tests alone that `make check` runs for the mutant's file.
        """
        if mutant.killer and mutant.killer != COMPILER:
            yield [mutant.killer]
        if not self.check_only:
            yield from nearest(self.tests, mutant.file)
        elif tests := choice(self.tests, [mutant.file])[0]:
            yield tests

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[bool]:
        """Install the mutant, and the product as it was afterwards. Yield whether it could be built.

        Raises `Stale` where its lines cannot be found.
        """
        place = Sources(self.root).place(mutant)
        path = self.root / place.file
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        last = place.first + place.count - 1
        indentation = lines[last][: len(lines[last]) - len(lines[last].lstrip())]
        lines[last] = indentation + mutant.becomes.split("\n")[-1] + "\n"
        try:
            path.write_text("".join(lines))
            yield self.install(path.suffix)
        finally:
            path.write_text(text)
            self.install(path.suffix)

    def install(self, suffix: str = "") -> bool:
        """Install what was changed in files with `suffix`. Return whether it could be built."""
        if suffix == ".py":
            return True  # the environment runs the checkout itself
        return all(
            subprocess.run(each, cwd=self.root, stdout=subprocess.DEVNULL, check=False).returncode == 0
            for each in self._builds()
        )

    def _builds(self) -> Iterator[list[str]]:
        python = str(self.root / ".venv/bin/python")
        code = "import sysconfig; print(sysconfig.get_path('platlib'))"
        site = subprocess.check_output([python, "-c", code], text=True).strip()
        build, cmake = "build/mutants", [python, "-m", "cmake"]
        options = [f"-DPython_EXECUTABLE={python}", f"-DNUMASERVE_INSTRUCTION_SETS={self.sets}"]
        options += ["-DNUMASERVE_KERNEL_TESTS=ON", "-DNUMASERVE_WERROR=ON", "-DCMAKE_BUILD_TYPE=Release"]
        yield [*cmake, "-S", ".", "-B", build, "-G", "Ninja", *options]
        yield [*cmake, "--build", build, "-j", str(self.processes)]
        yield [*cmake, "--install", build, "--prefix", site]

    def pytest(self, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Return the exit status and what was printed; None and nothing where the time was up."""
        processes = "0" if "::" in arguments[0] else str(self.processes)
        options = ["-q", "-x", "-n", processes, "--dist", "worksteal", "-m", "not slow", "-p", "no:cacheprovider"]
        process = subprocess.Popen(
            [str(self.root / ".venv/bin/pytest"), *options, *arguments],
            cwd=self.tests,
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


def judged(tree: Tree, mutant: Mutant, minutes: float) -> Mutant:
    """Return the row at its place, with its killer, or without one where no test has failed within the time.

    A test that also fails on the sound product kills nothing.
    """
    file = Sources(tree.root).place(mutant).file
    begun = time.monotonic()
    with tree.with_mutant(mutant) as built:
        built_at = time.monotonic()
        killer = _killer(tree, mutant, built_at + 60 * minutes) if built else COMPILER
        seconds = round(time.monotonic() - built_at)
    if killer not in ("", COMPILER):
        status, out = tree.pytest([killer], 600)
        if status != pytest.ExitCode.OK:
            print(f"{killer} fails without the mutant too: {out[-1000:]}", file=sys.stderr)
            killer = ""
    return replace(mutant, file=file, killer=killer, seconds=seconds if built else round(built_at - begun))


def _killer(tree: Tree, mutant: Mutant, end: float) -> str:
    for part in tree.parts(mutant):
        status, out = tree.pytest(part, end - time.monotonic())
        if status is None:
            return ""
        passed = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if not passed and _GONE not in out:
            found = _FAILED.search(out)
            return found[1] if found else part[0]
    return ""
