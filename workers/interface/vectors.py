"""Sparse vectors, and vectors of tokens, as workers send them to the front end."""

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

    @classmethod
    def of_tokens(cls, tokens: npt.NDArray[np.int32], weights: npt.NDArray[np.float32]) -> Self:
        """Return the highest weight of each token of a text that has a positive one; both are [tokens]."""
        ids, places = np.unique(tokens, return_inverse=True)
        highest = np.zeros(len(ids), np.float32)
        np.maximum.at(highest, places, weights)
        return cls(ids[highest > 0].astype(np.int32), highest[highest > 0])

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


def encoded_rows(rows: npt.NDArray[np.float32]) -> bytes:
    """Return the number of rows in four bytes, then all values in fp32, row by row; little-endian."""
    return len(rows).to_bytes(_COUNT_BYTES, "little") + rows.astype("<f4").tobytes()


def decoded_rows(content: bytes) -> npt.NDArray[np.float32]:
    """Return the rows that `encoded_rows` has encoded, fp32 [rows, columns]."""
    count = int.from_bytes(content[:_COUNT_BYTES], "little")
    return np.frombuffer(content, "<f4", offset=_COUNT_BYTES).reshape(count, -1 if count else 0)
