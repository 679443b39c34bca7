"""Every pair of values of a cross in a few of its rows: what fails does so for one or two of a test's values.

The few rows are in the fast set of tests, all others are marked `slow`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations, groupby

import pytest

Pair = tuple[int, int, Hashable, Hashable]


def pairs(row: Sequence[Hashable]) -> set[Pair]:
    """The pairs of values in a row, each with the columns that they are in."""
    return {(i, j, row[i], row[j]) for i, j in combinations(range(len(row)), 2)}


def pairwise(rows: Iterable[Sequence[Hashable]]) -> list[int]:
    """Numbers, ascending, of few `rows` in which there is each pair of values that is in any of them.

    Greedy: each row that is taken has the most pairs that are missing so far, and is the first of those. All rows have
    the same number of columns; of rows with one column each is taken, for there are no pairs.
    """
    of_row = [pairs(row) or {(0, 0, *row, None)} for row in rows]
    missing = set().union(*of_row)
    taken = []
    while missing:
        best = max(range(len(of_row)), key=lambda number: (len(of_row[number] & missing), -number))
        taken.append(best)
        missing -= of_row[best]
    return sorted(taken)


def mark_the_rest_slow(items: list[pytest.Item]) -> None:
    """Leaves the fast set a few rows of each test's cross: of its own parameters and of its fixtures'.

    Rows that are slow already count for no pair.
    """
    crossed = [item for item in items if hasattr(item, "callspec") and not item.get_closest_marker("slow")]
    for _, group in groupby(crossed, key=lambda item: item.nodeid.partition("[")[0]):
        rows = list(group)
        # An id for each `parametrize` and each fixture: in public hyphens join them, which an id may have too.
        few = set(pairwise(item.callspec._idlist for item in rows))
        for number, item in enumerate(rows):
            if number not in few:
                item.add_marker(pytest.mark.slow)
