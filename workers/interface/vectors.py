"""Sparse vectors as workers send them to the front end."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

_COUNT_BYTES = 4


class SparseEntries(NamedTuple):
    """The positive entries of a vector over the vocabulary: ids of tokens, ascending, and their values."""

    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]

    @classmethod
    def of_vector(cls, vector: npt.NDArray[np.float32]) -> Self:
        """Return the positive entries of a whole vector, fp32 [vocabulary]."""
        ids = np.flatnonzero(vector > 0).astype(np.int32)
        return cls(ids, vector[ids])

    def encoded(self) -> bytes:
        """Return the number of entries in four bytes, then the ids, then the values in fp32; all little-endian."""
        count = len(self.ids).to_bytes(_COUNT_BYTES, "little")
        return count + self.ids.astype("<i4").tobytes() + self.values.astype("<f4").tobytes()

    @classmethod
    def decoded(cls, content: bytes) -> Self:
        """Return the entries that `encoded` has made."""
        count = int.from_bytes(content[:_COUNT_BYTES], "little")
        ids = np.frombuffer(content, "<i4", count, _COUNT_BYTES)
        return cls(ids, np.frombuffer(content, "<f4", count, _COUNT_BYTES + ids.nbytes))
