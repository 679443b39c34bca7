"""Measurements of two trees that alternate, so that what disturbs a machine for seconds disturbs both."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
