"""Latency of a cache line from one core to another.

The barrier of a team of two threads passes a line to thread 0, and another one back: one way is half of a barrier.
"""

import itertools
from collections.abc import Sequence

from numaserve.kernels import Team, barrier_ns
from numaserve.workers.bench.group import Say, run_ranks
from numaserve.workers.bench.tasks import LinesPassed, PassLines
from numaserve.workers.planning.placement import RankCores

Pair = tuple[int, int]


def measure_lines(ranks: Sequence[RankCores], count: int, say: Say) -> tuple[list[float], list[float]]:
    """Return nanoseconds for at most `count` pairs of cores of the same node, and as many of different nodes."""
    same, other = core_pairs(ranks, count)
    if not same and not other:
        return [], []
    say(f"cache lines between {len(same) + len(other)} pairs of cores")
    (answer,) = run_ranks([PassLines([*same, *other])], LinesPassed, None, say)
    return answer.ns[: len(same)], answer.ns[len(same) :]


def core_pairs(ranks: Sequence[RankCores], count: int) -> tuple[list[Pair], list[Pair]]:
    """Return at most `count` pairs of cores of the same node, and as many of different nodes, evenly over all pairs."""
    same = [pair for each in ranks for pair in itertools.combinations(each.cpus, 2)]
    two = itertools.combinations([each.cpus for each in ranks], 2)
    other = [pair for first, second in two for pair in itertools.product(first, second)]
    return _some(same, count), _some(other, count)


def pass_lines(task: PassLines) -> LinesPassed:
    """Measure the pairs one after the other."""
    return LinesPassed([barrier_ns(Team(pair)) / 2 for pair in task.pairs])


def _some(pairs: Sequence[Pair], count: int) -> list[Pair]:
    shown = min(count, len(pairs))
    return [pairs[index * len(pairs) // shown] for index in range(shown)]
