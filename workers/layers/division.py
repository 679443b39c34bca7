"""The division of a decoder's blocks among pipeline stages."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numaserve.workers.layers.decoder import Decoder
    from numaserve.workers.layers.layer import Layer


def stage_blocks(decoder: Decoder, stages: int) -> list[range]:
    """Return the blocks of each stage, at least one. They follow from the sizes of tensors alone, so that all ranks and
    `numaserve plan` find the same."""
    head = 0 if decoder.head is None else _values(decoder.head)
    return divide(tuple(map(_values, decoder.blocks)), head, stages)


@lru_cache(maxsize=8)
def divide(blocks: tuple[int, ...], head: int, stages: int) -> list[range]:
    """Return the blocks of each stage, from the sizes of all blocks and of the head after the last one.

    The largest stage without the head is as small as possible. Among such divisions the one is taken whose stages, with
    the head, have the least sum of squares. Stages are then even, and the last one has fewer blocks where this makes no
    other stage larger.
    """
    # Sizes instead of equal numbers of blocks: the first blocks of many mixtures of experts are dense and small. With
    # two hosts of `configs/hosts`, DeepSeek-R1 in int8 has 32 and 29 blocks instead of 30 and 31. The estimate of
    # decoding is 5 to 7 % faster, that of prefill 2 to 3 %, and the fuller host needs 6 % less memory. Kimi Linear
    # gains 5 to 7 % and 1 %.
    #
    # The head moves no block that prefill would miss. Decoding reads the head for every token, and prefill does not:
    # for Llama 70B, 41 and 39 blocks gain 2 % of decoding and lose 2 % of prefill. The blocks of R1 and Qwen3-235B are
    # larger than their head, so that counting the head changes nothing. Only small models gain much: 10 and 6 blocks of
    # the shape of Llama 3.2 1B gain 14 to 17 % of decoding, but computing 10 blocks takes 25 % longer than 8. With
    # stages that may be 1 % larger than the smallest, Qwen3.5's and Nemotron's mixtures gain 5 to 6 % of decoding, and
    # lose 3 to 7 % of prefill.
    totals = (0, *accumulate(blocks))
    most = _ends(totals, stages, max, lambda _, size: size)[0]

    def squared(stage: int, size: int) -> float:
        return math.inf if size > most else (size + head * (stage == stages - 1)) ** 2

    ends = _ends(totals, stages, operator.add, squared)[1]
    return [range(*each) for each in pairwise((0, *ends))]


def _ends(
    totals: Sequence[int], stages: int, join: Callable[[float, float], float], cost: Callable[[int, int], float]
) -> tuple[float, tuple[int, ...]]:
    """Return the least costs of all stages, joined, and the end of each stage. `totals`: the sizes of all blocks before
    each. `cost`: of a stage of some size. The first stages are the larger ones of equal divisions."""
    blocks = len(totals) - 1
    found: dict[int, tuple[float, tuple[int, ...]]]
    found = {end: (cost(0, totals[end]), (end,)) for end in range(1, blocks - stages + 2)}
    for stage in range(1, stages):
        found = {
            end: min(
                (
                    (join(before, cost(stage, totals[end] - totals[begin])), (*ends, end))
                    for begin, (before, ends) in reversed(found.items())
                    if begin < end
                ),
                key=lambda each: each[0],
            )
            for end in range(stage + 1, blocks - stages + stage + 2)
        }
    return found[blocks]


def _values(layer: Layer) -> int:
    """Return the number of values of a layer's tensors."""
    units = {
        source: 1 if parameter.each is None else parameter.each.count
        for parameter in layer.parameters()
        for source in parameter.sources
    }
    return sum(math.prod(source.shape) * count for source, count in units.items())
