"""Kernels of this tree against those of another commit, in two processes that measure alternately."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from numaserve.workers.bench.rows import Figure, Row, Rows
from numaserve.workers.interface.errors import OperatorError

from tests.bench.amx_rounds import cases
from tests.support.alternating import ratios
from tests.support.tree_server import environment_of
from tests.support.trees import ROOT, has_commit, installed_root, root_of_commit

_SECONDS = 200.0  # of all cases together
_PASSES = 3
_LEAST, _MOST = 2, 7  # rounds of a case in a pass, without the first one
_TREE = (sys.executable, "-m", "tests.bench.amx_tree")
Say = Callable[[str], None]


class Tree:
    """The process of a tree."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Start the process, which writes into `folder` alone."""
        folder.mkdir(parents=True)
        self._process = subprocess.Popen(
            _TREE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment_of(root, folder, folder),
        )

    def ask(self, what: str, number: int) -> None:
        """Send a request, whose answer is read later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({what: number}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to the oldest request. Raises RuntimeError if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of a tree has ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def times(self, number: int) -> Mapping[str, float]:
        """Measure a case once more."""
        self.ask("run", number)
        times: Mapping[str, float] = self.answer()["times"]
        return times

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def processes(roots: Sequence[Path], folder: Path) -> Iterator[Sequence[Tree]]:
    """Yield a process of each tree."""
    with ExitStack() as closing:
        started: list[Tree] = []
        for number, root in enumerate(roots):
            started.append(Tree(root, folder / str(number)))
            closing.callback(started[-1].close)
        yield started


@dataclass
class Compared:
    """The ratios of each pass of a case, by row, and whether results were the same."""

    by_row: dict[str, list[list[float]]] = field(default_factory=dict)
    same: str = "equal"

    def add(self, pair: Sequence[Tree], number: int, until: float) -> None:
        """Measure a case alternately, until a moment."""
        for tree in pair:
            tree.ask("prepare", number)
        prepared = [tree.answer() for tree in pair]
        if any("missing" in each for each in prepared):
            return
        this, base = pair
        for name, found in ratios(this, base, rounds_until(until), lambda tree: tree.times(number)).items():
            self.by_row.setdefault(name, []).append(found)
        found_same = same_bytes(*(each["checksum"] for each in prepared))
        self.same = self.same if found_same == "equal" else found_same

    def rows(self, case: str, base: str) -> Rows:
        """Yield a row for each row of the case, with the lowest and the highest median of a pass."""
        for name, passes in self.by_row.items():
            medians = sorted(map(statistics.median, passes))
            figures: dict[str, Figure] = {"ratio": statistics.median(chain.from_iterable(passes))}
            figures |= {"low": medians[0], "high": medians[-1], "rounds": sum(map(len, passes)), "bytes": self.same}
            yield Row(f"this tree / {base}", {"case": case, "row": name}, figures)


def pair_rows(base: str, say: Say) -> Rows:
    """Yield for each row the ratio of the time of this tree to the time of the commit `base`, and whether results are
    the same to the byte. A ratio below 1 means that this tree is faster. Raises `OperatorError`.

    Each pass has new processes. Where memory lies decides about conflicts in the caches, and stays as it is in a
    process: the same code took 0.76 and 1.13 of its time in another process, in every round.
    """
    this = installed_root()
    if this is None or not has_commit(base):
        raise OperatorError(f"BASE={base}: the commit is not in the checkout, or this tree is not installed")
    known = cases()
    compared = [Compared() for _ in known]
    with tempfile.TemporaryDirectory(prefix="np-") as name:
        say(f"preparing the tree of {base}")
        folder = Path(name)
        roots = (this, root_of_commit(base, this, folder))
        begin, turns = time.monotonic(), _PASSES * len(known)
        for number in range(_PASSES):
            with processes(roots, folder / f"pass-{number}") as pair:
                for index, (case, of_case) in enumerate(zip(known, compared, strict=True)):
                    say(f"pass {number + 1}/{_PASSES}, {index + 1}/{len(known)}: {case.name}")
                    of_case.add(pair, index, begin + _SECONDS * (number * len(known) + index + 1) / turns)
    for case, of_case in zip(known, compared, strict=True):
        yield from of_case.rows(case.name, base)


def rounds_until(until: float) -> Iterator[int]:
    """Yield the numbers of rounds up to a moment: a first one that is not counted, and then few or many."""
    yield -1
    for number in range(_MOST):
        if number >= _LEAST and time.monotonic() > until:
            return
        yield number


def same_bytes(this: str | None, base: str | None) -> str:
    """Return what the checksums of a case say."""
    if this is None or base is None:
        return "not compared"
    return "equal" if this == base else "different"
