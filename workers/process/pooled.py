"""The vectors of pooled sequences, in the forms that plans ask for."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.protocol import SeqPlan
from numaserve.workers.interface.vectors import SparseEntries, encoded_rows
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.program.slots import END_POOL, END_POOL_TOKENS

NO_VECTOR = b"nan"  # in place of a vector that is not a number


class PooledVectors:
    """The vectors of the sequences of a model.

    `rows` is the memory of the columns of single tokens, fp32 [tokens of a step, columns]; None without a head for
    them. A step writes it if a sequence asks for them.
    """

    def __init__(self, decoder: Decoder, rows: npt.NDArray[np.float32] | None) -> None:
        self._head, self._is_sparse = decoder.token_head, decoder.masked_head is not None
        self._rows = rows

    def check(self, seq: SeqPlan) -> None:
        """Raise `ValueError` for a form of vectors that the model does not have."""
        head = self._head
        if seq.vector_form == "sparse" and not (self._is_sparse or (head and head.has_weights)):
            raise ValueError(f"slot {seq.slot} of the step asks for a sparse vector, and the model has none")
        if seq.vector_form == "tokens" and not (head and head.vectors):
            raise ValueError(f"slot {seq.slot} of the step asks for vectors of tokens, and the model has none")

    def end_of(self, seq: SeqPlan) -> int:
        """Return the use of the last position of a sequence that is pooled."""
        return END_POOL if self._is_sparse or seq.vector_form == "whole" else END_POOL_TOKENS

    def of(self, seqs: Sequence[SeqPlan], pooled: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, bytes | None]]:
        """Yield the index of each sequence that is pooled, and its vector in the form that its plan asks for; None for
        columns of tokens that are not numbers. `pooled` are indices, and vectors in fp32."""
        rows = list(accumulate((seq.num_tokens for seq in seqs), initial=0)) if pooled else []
        for index, vector in pooled:
            yield index, self._in_form(seqs[index], rows[index], vector)

    def _in_form(self, seq: SeqPlan, row: int, vector: bytes) -> bytes | None:
        if seq.vector_form == "whole":
            return vector
        if self._is_sparse:
            return SparseEntries.of_vector(np.frombuffer(vector, "<f4")).encoded()
        assert self._head is not None and self._rows is not None  # noqa: S101  `check` has refused the sequence
        rows = self._rows[row : row + seq.num_tokens]
        if not np.isfinite(rows).all():
            return None
        if seq.vector_form == "tokens":
            return encoded_rows(rows[1:, : self._head.vectors])
        return SparseEntries.of_tokens(np.array(seq.tokens, np.int32), rows[:, self._head.vectors]).encoded()
