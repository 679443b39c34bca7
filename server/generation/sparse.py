"""Sparse vectors: weights of token ids."""

from dataclasses import dataclass

import numpy as np
from numaserve.workers.interface.vectors import SparseEntries


@dataclass(frozen=True)
class SparseOutput:
    """The sparse vectors of a model: how often log(1 + x) is taken of the values that the workers return, and the token
    ids that have no weight."""

    logarithms: int = 0
    left_out: frozenset[int] = frozenset()

    def weights(self, embedding: bytes) -> list[tuple[int, float]]:
        """Return the token ids with a weight above zero, ascending, and the weights, each rounded to fp32."""
        ids, values = SparseEntries.decoded(embedding)
        wide = values.astype(np.float64)
        for _ in range(self.logarithms):
            wide = np.log1p(wide)
        entries = zip(ids.tolist(), wide.astype(np.float32).tolist(), strict=True)
        return [entry for entry in entries if entry[0] not in self.left_out]
