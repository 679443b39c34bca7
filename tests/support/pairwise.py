"""Every pair of values of a cross in a few of its rows: what fails does so for one or two of a test's values.

The few rows are in the fast set of tests, all others are marked `slow`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Row = tuple[Any, ...]
ParameterSet = type(pytest.param())
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


def cross(*factors: Iterable[Any], where: Callable[..., bool] | None = None) -> list[ParameterSet]:
    """Parameters of a test: the rows of the factors' cross for which `where` holds, `slow` but for few.

    A value may be a pytest.param of one value, whose marks its rows have.
    """
    columns = [[_parameter(value) for value in factor] for factor in factors]
    rows = [row for row in product(*map(range, map(len, columns))) if where is None or where(*_values(columns, row))]
    few = {rows[number] for number in pairwise(rows)}
    return [
        pytest.param(
            *_values(columns, row),
            marks=[
                *(mark for column, index in zip(columns, row, strict=True) for mark in column[index].marks),
                *(() if row in few else (pytest.mark.slow,)),
            ],
        )
        for row in rows
    ]


def _parameter(value: Any) -> ParameterSet:
    return value if isinstance(value, ParameterSet) else pytest.param(value)


def _values(columns: list[list[ParameterSet]], row: tuple[int, ...]) -> Row:
    return tuple(column[index].values[0] for column, index in zip(columns, row, strict=True))
