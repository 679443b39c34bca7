"""The base classes of layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from numaserve.workers.layers.caches import Borrowed, Cache
from numaserve.workers.layers.parameters import Parameter

if TYPE_CHECKING:
    from numaserve.workers.interface.settings import KvCacheDtype
    from numaserve.workers.layers.partition import RankPart
    from numaserve.workers.program.buffers import Operand, Partial
    from numaserve.workers.program.caches import CacheIndex
    from numaserve.workers.program.handles import Vector
    from numaserve.workers.program.recording.builder import ProgramBuilder
    from numaserve.workers.program.rope import RopeConfig


@dataclass(frozen=True)
class Layer:
    """A part of a model. Layers are plain data: equal ones are the same layer.

    By default a layer is what its fields are: those of its fields that are layers, in order.
    """

    @property
    def children(self) -> list[Layer]:
        """The layers that it is made of."""
        return [*self._children]

    @cached_property
    def _children(self) -> tuple[Layer, ...]:
        # Kept, as the parameters are.
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(
            each
            for value in values
            for each in (value if isinstance(value, tuple) else (value,))
            if isinstance(each, Layer)
        )

    def own_parameters(self) -> Iterator[Parameter | None]:
        """Parameters that no child has, in the order in which they are loaded; None for one that it does without."""
        return iter(())

    def parameters(self) -> Sequence[Parameter]:
        """All of its parameters, in the order in which they are loaded."""
        return self._parameters

    @cached_property
    def _parameters(self) -> tuple[Parameter, ...]:
        # Kept: what folds over a model asks for them dozens of times while it is loaded.
        own = (each for each in self.own_parameters() if each is not None)
        return (*own, *(each for child in self.children for each in child.parameters()))

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """The same layer as a GGUF file with these tensors has it; `pairs`: rotated dimensions lie in pairs there."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Layer):
                changed[field.name] = value.in_gguf(pairs, tensors)
            elif isinstance(value, tuple) and any(isinstance(each, Layer) for each in value):
                changed[field.name] = tuple(each.in_gguf(pairs, tensors) for each in value)
        return replace(self, **changed) if changed else self

    def scratch_columns(self, part: RankPart) -> int:
        """Columns of a step's intermediate results for each token on one rank, as if no two shared memory."""
        return sum(child.scratch_columns(part) for child in self.children)

    def message_columns(self, part: RankPart) -> int:
        """Columns, fp32, for each token of the widest message of a rank to the others, but for the residual stream."""
        return max((child.message_columns(part) for child in self.children), default=0)

    @property
    def shares_queries(self) -> bool:
        """Whether ranks send each other the queries of their heads."""
        return any(child.shares_queries for child in self.children)

    @property
    def ropes(self) -> frozenset[RopeConfig]:
        """The rotary embeddings of all its layers. Layers with equal ones share a table."""
        return frozenset(rope for child in self.children for rope in child.ropes)

    @property
    def keeps(self) -> tuple[Cache, ...]:
        """The caches of all its layers, in order."""
        return self._keeps

    @cached_property
    def _keeps(self) -> tuple[Cache, ...]:
        return tuple(cache for child in self.children for cache in child.keeps)

    def page_bytes(self, part: RankPart, dtype: KvCacheDtype) -> int:
        """Memory of a page of KV cache on one rank. Raises `OperatorError` for a dtype that it does not cache in."""
        return sum(cache.page_bytes(part, dtype) for cache in self.keeps)

    def slot_bytes(self, part: RankPart) -> int:
        """Memory of a slot on one rank, besides its pages."""
        return sum(cache.slot_bytes(part) for cache in self.keeps)

    def state_bytes(self, part: RankPart) -> int:
        """Memory of a slot's recurrent states on one rank, which is part of `slot_bytes`."""
        return sum(cache.state_bytes(part) for cache in self.keeps)

    def draft_bytes(self, part: RankPart) -> int:
        """Bytes of a draft token of a slot, in all caches."""
        return sum(cache.draft_bytes(part) for cache in self.keeps)

    def snapshot_bytes(self, part: RankPart) -> int:
        """Memory of a snapshot of these states on one rank."""
        return sum(cache.snapshot_bytes(part) for cache in self.keeps)


@dataclass(frozen=True)
class Mixer(Layer, ABC):
    """A layer in which tokens of a sequence meet, such as attention."""

    @property
    @abstractmethod
    def cache(self) -> Cache:
        """The cache that it keeps of the tokens before."""

    @property
    def keeps(self) -> tuple[Cache, ...]:
        """See `Layer`."""
        return (self.cache,)

    @property
    def keeps_tokens(self) -> bool:
        """Whether it stores something of a token that later tokens read."""
        return not isinstance(self.cache, Borrowed)

    @abstractmethod
    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand, place: CacheIndex) -> Partial:
        """The rank's part of a sum over the ranks, fp32 [tokens, hidden]; `x` is bf16 [tokens, hidden].

        `place` is that of its cache.
        """

    def bias(self, part: RankPart) -> Vector | None:
        """A bias, [hidden], that is added to that sum; None: there is none."""
        return None


@dataclass(frozen=True)
class FeedForward(Layer, ABC):
    """A layer that takes tokens one by one, such as an MLP."""

    @abstractmethod
    def forward(self, b: ProgramBuilder, part: RankPart, x: Operand) -> Partial:
        """The rank's part of a sum over the ranks, fp32 [tokens, hidden]; `x` is bf16 [tokens, hidden]."""

    def bias(self, part: RankPart) -> Vector | None:
        """A bias, [hidden], that is added to that sum; None: there is none."""
        return None
