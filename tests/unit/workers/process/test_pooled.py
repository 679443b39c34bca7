"""Vectors of pooled sequences in the forms that plans ask for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numaserve.workers.interface.protocol import SeqPlan, VectorForm
from numaserve.workers.interface.vectors import SparseEntries, decoded_rows, encoded_rows
from numaserve.workers.layers.token_head import TokenHead
from numaserve.workers.process.pooled import PooledVectors
from numaserve.workers.program.slots import END_POOL, END_POOL_TOKENS

WHOLE = np.array([1, -2, 0, 4], np.float32)
ROWS = np.arange(24, dtype=np.float32).reshape(8, 3) - 12


def vectors(head: TokenHead | None = None, rows: Any = ROWS, *, sparse: bool = False) -> PooledVectors:
    decoder: Any = SimpleNamespace(token_head=head, masked_head=object() if sparse else None)
    return PooledVectors(decoder, rows)


def seq(slot: int, tokens: list[int], form: VectorForm = "whole") -> SeqPlan:
    return SeqPlan(slot, 0, tokens, pool=True, vector_form=form)


BOTH = TokenHead(72, 2, has_weights=True)


def test_rows_of_a_sequence_follow_those_of_the_sequences_before() -> None:
    seqs = [seq(0, [5, 6]), seq(1, [7, 8, 7], "tokens"), seq(2, [9, 4, 9], "sparse")]
    pooled = [(index, WHOLE.tobytes()) for index in range(3)]
    whole, tokens, sparse = (vector for _, vector in vectors(BOTH).of(seqs, pooled))
    assert whole == WHOLE.tobytes()
    assert tokens is not None
    assert sparse is not None
    np.testing.assert_array_equal(decoded_rows(tokens), ROWS[3:5, :2])
    entries = SparseEntries.decoded(sparse)
    assert (entries.ids.tolist(), entries.values.tolist()) == ([4, 9], [8, 11])


def test_columns_that_are_not_numbers_are_those_of_their_sequence_alone() -> None:
    rows = ROWS.copy()
    rows[2, 1] = np.nan
    seqs = [seq(0, [5, 6], "tokens"), seq(1, [7], "sparse"), seq(2, [8], "whole")]
    found = dict(vectors(BOTH, rows).of(seqs, [(index, WHOLE.tobytes()) for index in range(3)]))
    assert [found[index] is None for index in range(3)] == [False, True, False]


def test_a_vector_over_the_vocabulary_has_its_positive_entries() -> None:
    ((_, found),) = vectors(sparse=True).of([seq(0, [5], "sparse")], [(0, WHOLE.tobytes())])
    assert found is not None
    ids, values = SparseEntries.decoded(found)
    assert (ids.tolist(), values.tolist()) == ([0, 3], [1, 4])


@pytest.mark.parametrize(
    ("made", "form", "end"),
    [
        (vectors(BOTH), "whole", END_POOL),
        (vectors(BOTH), "sparse", END_POOL_TOKENS),
        (vectors(BOTH), "tokens", END_POOL_TOKENS),
        (vectors(sparse=True), "sparse", END_POOL),
    ],
)
def test_columns_of_tokens_are_computed_where_they_are_needed(made: PooledVectors, form: VectorForm, end: int) -> None:
    made.check(seq(0, [5], form))
    assert made.end_of(seq(0, [5], form)) == end


@pytest.mark.parametrize(
    ("made", "form"),
    [
        (vectors(), "sparse"),
        (vectors(), "tokens"),
        (vectors(sparse=True), "tokens"),
        (vectors(TokenHead(72, 0, has_weights=True)), "tokens"),
        (vectors(TokenHead(72, 2, has_weights=False)), "sparse"),
    ],
)
def test_a_form_that_a_model_lacks_is_refused(made: PooledVectors, form: VectorForm) -> None:
    made.check(seq(0, [5]))
    with pytest.raises(ValueError, match=r"slot 3 of the step asks for .*, and the model has none"):
        made.check(seq(3, [5], form))


def test_no_rows_and_no_entries_are_encoded_too() -> None:
    assert decoded_rows(encoded_rows(np.zeros((0, 4), np.float32))).shape[0] == 0
    assert encoded_rows(np.zeros((0, 4), np.float32)) != b""
    nothing = SparseEntries.of_tokens(np.array([3, 3], np.int32), np.array([-1, 0], np.float32))
    assert SparseEntries.decoded(nothing.encoded()).ids.tolist() == []
