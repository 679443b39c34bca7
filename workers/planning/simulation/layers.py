"""Steps of a whole model from a few of its layers: layers of one kind take the same time.

The programs that count have one layer of each kind, and the last one, which computes fewer rows. For each kind that the
model has more of, another program has one layer more: the difference is the time of a layer. A layer that uses the KV
cache of another one is never without that.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from numaserve.workers.layers.caches import Borrowed
from numaserve.workers.planning.roofline.ranks import rank_operations
from numaserve.workers.planning.simulation.counting import CountedGroup
from numaserve.workers.program.cost import StepWork

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from numaserve.workers.interface.capacity import Capacity
    from numaserve.workers.layers.partition import Partition
    from numaserve.workers.models.spec import ModelConfig
    from numaserve.workers.planning.simulation.times import HostTimes, StepTotals

_SOME_STEP = StepWork([(1000, 100), (100, 1)], 2)  # in which layers of different kinds differ


class CountedModel:
    """A model whose steps are counted."""

    def __init__(
        self, config: ModelConfig, partition: Partition, limits: Capacity, slot_bytes: int, skew: float = 0.0
    ) -> None:
        """Make the programs; see `CountedGroup`."""
        last = len(config.decoder.blocks) - 1
        kinds = list(_kinds(config, partition))
        base = _with_lenders(config, {last, *(kind[0] for kind in kinds)})
        with ExitStack() as resources:

            def group(layers: set[int]) -> CountedGroup:
                cut = _with_blocks(config, layers)
                of_cut = cut.partition(partition.shares, partition.settings)
                return resources.enter_context(CountedGroup(cut.decoder, of_cut, limits, slot_bytes, skew))

            self._base = group(base)
            others = [[layer for layer in kind if layer not in base] for kind in kinds]
            self._more = [(len(kind), group(base | {kind[0]})) for kind in others if kind]
            self._resources = resources.pop_all()

    def __enter__(self) -> CountedModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._resources.close()

    def step(self, work: StepWork, times: HostTimes) -> StepTotals:
        """Return the time of a step of the whole model on a host."""
        base = total = times.of(self._base, work)
        for count, group in self._more:
            layer = times.of(group, work).plus(base, -1)
            total = total.plus(layer, count)
        return total


def _kinds(config: ModelConfig, partition: Partition) -> Iterator[list[int]]:
    """Yield the layers of each kind, without the last layer of the model."""
    found: dict[tuple[object, ...], list[int]] = {}
    for layer in range(len(config.decoder.blocks) - 1):
        cut = _with_blocks(config, _with_lenders(config, {layer}))
        costs = rank_operations(cut.decoder, cut.partition(partition.shares, partition.settings).ranks[0])
        key = tuple((cost.name, cost.weights, cost.amount(_SOME_STEP)) for cost in costs)
        found.setdefault(key, []).append(layer)
    yield from found.values()


def _with_lenders(config: ModelConfig, layers: set[int]) -> set[int]:
    """Return the layers, and those whose KV cache they use."""
    caches = config.decoder.caches
    borrowed = {layer: each.of for layer in layers if isinstance(each := caches[layer], Borrowed)}
    return layers | {max(lender for lender in range(layer) if caches[lender] == of) for layer, of in borrowed.items()}


def _with_blocks(config: ModelConfig, layers: set[int]) -> ModelConfig:
    blocks = config.decoder.blocks
    return replace(config, decoder=replace(config.decoder, blocks=tuple(blocks[layer] for layer in sorted(layers))))
