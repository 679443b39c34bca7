"""Every pair of values of a cross in a few of its rows: what fails does so for one or two of a test's values.

The few rows are in the fast set of tests, all others are marked `slow`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations, groupby

import pytest


def pairwise(rows: Iterable[Sequence[Hashable]]) -> list[int]:
    """Numbers, ascending, of few `rows` in which there is each pair of values that is in any of them.

    Greedy: each row that is taken has the most pairs that are missing so far, of those the values that were taken least
    often, and is the first of those. All rows have the same number of columns; of rows with one column each is taken,
    for there are no pairs.
    """
    values = [list(enumerate(row)) for row in rows]
    of_row = [{(i, j, one, other) for (i, one), (j, other) in combinations(row, 2)} or {*row} for row in values]
    missing = set[Hashable]().union(*of_row)
    taken = []
    uses = Counter[tuple[int, Hashable]]()
    while missing:
        gains = [
            (len(each & missing), -sum(uses[value] for value in row)) for each, row in zip(of_row, values, strict=True)
        ]
        best = gains.index(max(gains))
        taken.append(best)
        uses.update(values[best])
        missing -= of_row[best]
    return sorted(taken)


def mark_the_rest_slow(items: list[pytest.Item]) -> None:
    """Leaves the fast set a few rows of each test's cross: of its own parameters and of its fixtures'.

    An id such as `llama*int8` is of a row that a test's file chose from a cross itself, and of two values in it. Rows
    that are slow already count for no pair.
    """
    crossed = [item for item in items if hasattr(item, "callspec") and not item.get_closest_marker("slow")]
    for _, group in groupby(crossed, key=lambda item: item.nodeid.partition("[")[0]):
        rows = list(group)
        # An id for each `parametrize` and each fixture: in public hyphens join them, which an id may have too.
        few = set(pairwise("*".join(item.callspec._idlist).split("*") for item in rows))
        for number, item in enumerate(rows):
            if number not in few:
                item.add_marker(pytest.mark.slow)
