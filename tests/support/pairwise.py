"""Every pair of values of a cross in a few of its rows: what fails does so for one or two of a test's values.

The few rows are in the fast set of tests, all others are marked `slow`. The number of ranks is no value of the cross:
each row of the other values runs with one number.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from zlib import crc32

import pytest

# Parameters and fixtures whose values are spread over the rows of every test. The mark `spread` names others of a test.
_SPREAD = frozenset({"tp"})


def pairwise(rows: Iterable[Sequence[Hashable]]) -> list[int]:
    """Numbers, ascending, of few `rows` in which there is each pair of values that is in any of them.

    Greedy: each row that is taken has the most pairs that are missing so far, of those the values that were taken least
    often, and is the first of those. All rows have the same number of columns. With fewer than three columns each row
    is taken that is not a repetition: it is a pair of its own, or a value.
    """
    values = [list(enumerate(row)) for row in rows]
    if all(len(row) < 3 for row in values):
        return sorted({tuple(row): number for number, row in reversed([*enumerate(values)])}.values())
    of_row = [{(i, j, one, other) for (i, one), (j, other) in combinations(row, 2)} for row in values]
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


@dataclass(frozen=True)
class Row:
    """A row of a test: its values that are crossed, those that are spread over them, and its name."""

    crossed: tuple[str, ...]
    spread: tuple[str, ...]
    name: str


def fast_rows(rows: Sequence[Row]) -> set[int]:
    """Return the numbers of the rows of the fast set: one of each `pairwise` row of the crossed values.

    Among rows with the same crossed values, the one is taken whose spread values are least used with these values and
    with each other, then least used at all. A hash of the name decides between equals: files begin with other values.
    """
    uses = Counter[Hashable]()

    def cost(number: int) -> tuple[int, int, int]:
        pairs, values = _spread_of(rows[number])
        return sum(uses[each] for each in pairs), sum(uses[each] for each in values), crc32(rows[number].name.encode())

    alike: dict[tuple[str, ...], list[int]] = {}  # numbers of rows by their crossed values
    for number, row in enumerate(rows):
        alike.setdefault(row.crossed, []).append(number)
    crosses = [*alike]
    taken = set()
    for chosen in pairwise(crosses):
        best = min(alike[crosses[chosen]], key=cost)
        taken.add(best)
        for each in _spread_of(rows[best]):
            uses.update(each)
    return taken


def _spread_of(row: Row) -> tuple[list[Hashable], list[Hashable]]:
    """Return the pairs of values of which the second is spread, and the spread values."""
    values = [*enumerate((*row.crossed, *row.spread))]
    spread = values[len(row.crossed) :]
    return [pair for pair in combinations(values, 2) if pair[1] in spread], [*spread]


def _row(item: pytest.Function) -> Row:
    """Return the ids of the test's parameters and fixtures."""
    names = _SPREAD.union(*(mark.args for mark in item.iter_markers("spread")))
    crossed, spread = [], []
    # In public hyphens join the ids, which an id may have too.
    for name, value in zip(_names(item), item.callspec._idlist, strict=True):
        if name in names:
            spread.append(value)
        else:
            crossed += value.split("*")
    # Tests of a file choose alike: they share the fixtures of their module.
    return Row(tuple(crossed), tuple(spread), f"{item.path.name}[{item.callspec.id}]")


def _names(item: pytest.Function) -> Iterator[str]:
    """Yield the name of what has each id: a fixture, or the parameters of a `parametrize`, joined by commas."""
    joined = [mark.args[0] for mark in item.iter_markers("parametrize")]
    of_several = {names[0]: names for each in joined if len(names := _split(each)) > 1}
    followers = {name for names in of_several.values() for name in names[1:]}
    for name in item.callspec.params:
        if name not in followers:
            yield ",".join(of_several.get(name, [name]))


def _split(names: str | Sequence[str]) -> Sequence[str]:
    return re.findall(r"\w+", names) if isinstance(names, str) else names


def mark_the_rest_slow(items: list[pytest.Item]) -> None:
    """Leave the fast set a few rows of each test's cross: of its own parameters and of its fixtures'.

    An id such as `llama*int8` is of a row that a test's file chose from a cross itself, and of two values in it. Rows
    that are slow already count for no pair.
    """
    crossed = [item for item in items if hasattr(item, "callspec") and not item.get_closest_marker("slow")]
    for _, group in groupby(crossed, key=lambda item: item.nodeid.partition("[")[0]):
        tests = list(group)
        few = fast_rows([*map(_row, tests)])
        for number, item in enumerate(tests):
            if number not in few:
                item.add_marker(pytest.mark.slow)
