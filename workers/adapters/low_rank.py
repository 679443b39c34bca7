"""An adapter as its files have it, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from numaserve.workers.weights.source import RawTensor

MAX_ALPHA = 3e38  # scales are fp32
AdapterKind = Literal["peft", "gguf"]


@dataclass(frozen=True)
class LowRank:
    """The update of one matrix [n, k]: scale * b · a."""

    a: RawTensor  # [rank, k]
    b: RawTensor  # [n, rank]
    scale: float

    @property
    def rank(self) -> int:
        """The rank of the update."""
        return self.a.shape[0]

    @property
    def lines(self) -> int:
        """The number of rows and columns of the matrix."""
        return self.a.shape[1] + self.b.shape[0]


@dataclass(frozen=True)
class AdapterFiles:
    """The updates of an adapter, by the name that its files have for a matrix, and the SHA-256 of these files."""

    where: str  # for messages
    kind: AdapterKind
    updates: Mapping[str, LowRank]
    digest: str
    nbytes: int
