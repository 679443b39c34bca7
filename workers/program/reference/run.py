"""Weights, KV cache and values of buffers that the operations of a step work on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numaserve.workers.interface.protocol import TokenLogprobs
from numaserve.workers.program.buffers import Buffer, Columns
from numaserve.workers.program.caches import CacheIndex, Heads
from numaserve.workers.program.handles import TILE_ROWS, Handle
from numaserve.workers.program.ops.base import Adapters, Matrix, Rope, Vector
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.reference.caches import KvCache, States
from numaserve.workers.program.reference.masks import StepMasks
from numaserve.workers.program.reference.numbers import Numbers
from numaserve.workers.program.reference.ranks import Member
from numaserve.workers.program.reference.step import Step
from numaserve.workers.program.setup import ProgramSetup


class Weights:
    """Values of weights in the numbers of a program, expanded once. `native` gives the native object of a handle."""

    def __init__(self, numbers: Numbers, native: Callable[[Handle], Any] | None) -> None:
        self._numbers, self._native = numbers, native
        self._expanded: dict[Any, torch.Tensor] = {}
        self._query_scales: dict[Any, torch.Tensor | None] = {}

    def values(self, weight: Matrix | Vector | Rope) -> torch.Tensor:
        """A matrix [n, k], a vector [size], or cosines and sines [2, positions, rotated dimensions / 2]."""
        if weight not in self._expanded:
            self._expanded[weight] = torch.from_numpy(self._held(weight).to_numpy()).to(self._numbers.dtype)
        return self._expanded[weight]

    def adapter(self, adapters: Adapters, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The A [parts * rank, k in whole tiles] of an adapter, times its scale, and its B [n in whole tiles, parts *
        rank]. Neither is kept: an adapter may be loaded between two steps."""
        _, scales, a, b = self._held(adapters).values(place)
        factors = torch.tensor(scales, dtype=self._numbers.dtype)[:, None, None]
        whole = torch.zeros(len(adapters.panels) * TILE_ROWS, adapters.parts, adapters.rank, dtype=self._numbers.dtype)
        blocks = iter(self._of_bits(b))
        for panel, parts in enumerate(adapters.panels):
            for part in parts:
                whole[panel * TILE_ROWS : (panel + 1) * TILE_ROWS, part] = next(blocks).T
        return (self._of_bits(a) * factors).flatten(0, 1), whole.flatten(1)

    def _of_bits(self, bits: npt.NDArray[np.uint16]) -> torch.Tensor:
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).to(self._numbers.dtype)

    def query_scale(self, rope: Rope) -> torch.Tensor | None:
        """The factors of queries, [positions]; None where all are 1."""
        if rope not in self._query_scales:
            factors = self._held(rope).query_scale_to_numpy()
            scale = torch.from_numpy(factors).to(self._numbers.dtype) if len(factors) else None
            self._query_scales[rope] = scale
        return self._query_scales[rope]

    def distance(self, rope: Rope) -> int:
        """The dimensions from the first of a pair to the second."""
        found: int = self._held(rope).distance
        return found

    def _held(self, weight: Matrix | Vector | Rope | Adapters) -> Any:
        return weight if self._native is None or not isinstance(weight, Handle) else self._native(weight)


class Sampled(NamedTuple):
    """The result of a row of logits."""

    sample: TokenLogprobs | None = None
    target: TokenLogprobs | None = None
    named: list[float] = []  # log-probabilities of the tokens that its sequence names


@dataclass
class Run:
    """One step: its rows, values of buffers, and what it finds."""

    setup: ProgramSetup
    numbers: Numbers
    weights: Weights
    kv: KvCache
    states: States
    ranks: Member
    step: Step
    masks: StepMasks
    outside: OutsideRows
    whole: Step = field(init=False)  # before operations that narrow it
    values: dict[Buffer, torch.Tensor] = field(default_factory=dict)
    sampled: list[Sampled] = field(default_factory=list)  # by row of logits; on rank 0
    pooled: list[tuple[int, bytes]] = field(default_factory=list)  # index in the plan, fp32 values
    dropped: list[int] = field(default_factory=list)  # sequences that their masks leave no token
    late: list[int] = field(default_factory=list)  # sequences whose masks were not there in time
    spoiled: list[int] = field(default_factory=list)  # sequences without usable results, by index in the plan

    def __post_init__(self) -> None:
        self.whole = self.step

    def heads(self, cache: CacheIndex) -> Heads:
        """The heads of a layer with that cache."""
        return self.setup.shape.caches[cache.kind].heads

    def get(self, buffer: Buffer) -> torch.Tensor:
        """The value of a buffer, or of a part of one: as many rows as the step has of it."""
        if isinstance(buffer, Columns):
            return self.get(buffer.of)[:, buffer.first : buffer.first + buffer.cols]
        return self.values[buffer]

    def put(self, buffer: Buffer, value: torch.Tensor, *, add: bool = False) -> None:
        """Give a buffer, or a part of one, its value, or add to it."""
        if isinstance(buffer, Columns):
            whole = self.values.setdefault(buffer.of, torch.zeros(len(value), buffer.of.cols, dtype=value.dtype))
            whole[:, buffer.first : buffer.first + buffer.cols] = value
        else:
            self.values[buffer] = self.values[buffer] + value if add else value

    def optional(self, vector: Vector | None) -> torch.Tensor | None:
        """The values of a vector, where there is one."""
        return None if vector is None else self.weights.values(vector)
