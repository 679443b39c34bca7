"""Rows of a vocabulary-split embedding, gathered from packed weights."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest


@pytest.mark.parametrize(("rows", "hidden"), [(16, 32), (100, 576), (33, 50)])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_come_out_exactly_and_scaled_in_fp32(
    isa: str, rng: np.random.Generator, rows: int, hidden: int, threads: int
) -> None:
    table = reference.to_bf16(rng.standard_normal((rows, hidden)))
    tokens = [int(t) for t in rng.integers(0, rows, 41)] + [0, rows - 1]
    scale = np.float32(np.sqrt(hidden))
    result = kernel_ops.embed(isa, tokens, table, first_row=0, scale=scale, threads=threads)
    np.testing.assert_array_equal(result[:, :hidden], reference.from_bf16(table[tokens]) * scale)
    assert not result[:, hidden:].any()


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_added_to_those_that_are_there(isa: str, rng: np.random.Generator, threads: int) -> None:
    table, before = reference.to_bf16(rng.standard_normal((48, 64))), rng.standard_normal((5, 64)).astype(np.float32)
    tokens = [99, 100, 147, 148, 0]
    result = kernel_ops.embed(isa, tokens, table, first_row=100, scale=1.0, added_to=before, threads=threads)
    np.testing.assert_array_equal(result[1:3], before[1:3] + reference.from_bf16(table[[0, 47]]))
    np.testing.assert_array_equal(result[[0, 3, 4]], before[[0, 3, 4]])


def test_tokens_of_another_rank_give_zero(isa: str, rng: np.random.Generator) -> None:
    table = reference.to_bf16(rng.standard_normal((48, 64)))
    tokens = [99, 100, 147, 148, 0]
    result = kernel_ops.embed(isa, tokens, table, first_row=100, scale=1.0)
    np.testing.assert_array_equal(result[1:3, :64], reference.from_bf16(table[[0, 47]]))
    assert not result[[0, 3, 4]].any()
