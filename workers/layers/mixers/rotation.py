"""The rotation of queries and keys by their positions (Su et al., 2021)."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from numaserve.workers.layers.layer import Layer
from numaserve.workers.program.rope import RopeConfig


@dataclass(frozen=True)
class Rotation(Layer):
    """The rotary embedding of an attention layer, and the order of rotated dimensions in the checkpoint."""

    rope: RopeConfig
    pairs: bool = False  # rotated dimensions lie in pairs in the checkpoint, not in halves

    @property
    def ropes(self) -> frozenset[RopeConfig]:
        """See `Layer`."""
        return frozenset((self.rope,))

    def in_gguf(self, pairs: bool, tensors: Collection[str]) -> Self:
        """See `Layer`."""
        return replace(self, pairs=pairs)
