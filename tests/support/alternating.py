"""Measurements of two trees that alternate, so that what disturbs a machine for seconds disturbs both."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

Tree = TypeVar("Tree")


def ratios(
    this: Tree, base: Tree, rounds: Iterable[int], figures: Callable[[Tree], Mapping[str, float]]
) -> dict[str, list[float]]:
    """Return for each figure its ratio of `this` to `base` in each of `rounds`. The first tree begins every second
    round. Negative rounds are not counted."""
    found: dict[str, list[float]] = {}
    for number in rounds:
        order = (this, base) if number % 2 else (base, this)
        of_trees = {id(tree): figures(tree) for tree in order}
        for name, figure in of_trees[id(this)].items() if number >= 0 else ():
            found.setdefault(name, []).append(figure / of_trees[id(base)][name])
    return found


def ratios_of_loads(
    this: Callable[[], AbstractContextManager[Tree]],
    base: Callable[[], AbstractContextManager[Tree]],
    loads: int,
    rounds: Iterable[int],
    figures: Callable[[Tree], Mapping[str, float]],
) -> dict[str, list[list[float]]]:
    """Return for each figure its ratios in each load of both trees, see `ratios`. Two equal trees differ for as long as
    they are loaded, by the pages of memory that they were given. The first one takes the larger pages that are left, so
    `this` is loaded first in every second load."""
    found: dict[str, list[list[float]]] = {}
    for load in range(loads):
        order = (this, base) if load % 2 else (base, this)
        with order[0]() as first, order[1]() as second:
            pair = (first, second) if load % 2 else (second, first)
            for name, of_load in ratios(*pair, rounds, figures).items():
                found.setdefault(name, []).append(of_load)
    return found


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
