"""The test files that `make check` runs for changed files: the nearest ones that fit the time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from tests.check.durations import UNKNOWN_S, recorded
from tests.check.nearest import near

PROCESSES = 2
SECONDS = 60.0
_START_S = 3.0  # until the files are collected
COLLECTION_S = 0.04  # of each file, in each process


def choice(root: Path, files: Iterable[str], seconds: float = SECONDS) -> tuple[list[str], list[str]]:
    """Return the test files of the checkout `root` that run within `seconds`, and the near ones that are left out."""
    return chosen(by_distance(root, files), seconds - _START_S, recorded())


def by_distance(root: Path, files: Iterable[str]) -> Iterator[list[str]]:
    """Yield the tests that are near to the changed files, those of the first group of each file first."""
    for groups in zip_longest(*(near(root, file) for file in files), fillvalue=[]):
        yield [file for group in groups for file in group]


def chosen(
    groups: Iterable[Sequence[str]], seconds: float, durations: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Return the test files that fit the time, and those that are left out.

    A nearer group comes first, and within a group a shorter file, so that the most files fit. In the order of their
    names, the first folders of an area took all the time. A file that does not fit leaves its time to later groups.
    """

    def needed(file: str) -> float:
        return durations.get(file, UNKNOWN_S) + PROCESSES * COLLECTION_S

    left = seconds * PROCESSES
    taken: list[str] = []
    late: list[str] = []
    for file in dict.fromkeys(file for group in groups for file in sorted(group, key=needed)):
        (taken if needed(file) <= left else late).append(file)
        left -= needed(file) if needed(file) <= left else 0.0
    return taken, late
