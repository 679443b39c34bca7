"""Sparse vectors: weights of token ids, in the forms that all API surfaces share."""

from dataclasses import dataclass

import numpy as np
from numaserve.workers.interface.vectors import SparseEntries


@dataclass(frozen=True)
class SparseOutput:
    """The sparse vectors of a model: how often log(1 + x) is taken of the values that the workers return."""

    logarithms: int

    def weights(self, embedding: bytes) -> list[tuple[int, float]]:
        """Return the token ids with a weight above zero, ascending, and the weights, each rounded to fp32."""
        ids, values = SparseEntries.decoded(embedding)
        wide = values.astype(np.float64)
        for _ in range(self.logarithms):
            wide = np.log1p(wide)
        return list(zip(ids.tolist(), wide.astype(np.float32).tolist(), strict=True))
