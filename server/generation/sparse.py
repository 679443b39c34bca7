"""Sparse vectors: weights of token ids."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numaserve.workers.interface.vectors import SparseEntries

_TOGETHER = 1024  # entries


@dataclass(frozen=True)
class SparseOutput:
    """The sparse vectors of a model: how often log(1 + x) is taken of the values that the workers return, and the token
    ids that have no weight."""

    logarithms: int = 0
    left_out: frozenset[int] = frozenset()

    @property
    def of_tokens(self) -> bool:
        """Whether the tokens of a text have weights, as with BGE-M3. With SPLADE any token of the vocabulary may have
        one."""
        return not self.logarithms

    def weights(self, embedding: bytes) -> Iterator[tuple[int, float]]:
        """Yield the token ids with a weight above zero, ascending, and the weights, each rounded to fp32.

        A vector may have an entry for each token of the vocabulary; Python objects are made of a few at a time.
        """
        ids, values = SparseEntries.decoded(embedding)
        wide = values.astype(np.float64)
        for _ in range(self.logarithms):
            wide = np.log1p(wide)
        rounded = wide.astype(np.float32)
        del wide
        for start in range(0, len(ids), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            for token, weight in zip(ids[part].tolist(), rounded[part].tolist(), strict=True):
                if token not in self.left_out:
                    yield token, weight
