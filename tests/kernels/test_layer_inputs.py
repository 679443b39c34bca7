"""Inputs of layers besides the residual stream."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from numaserve_kernel_tests import layer_inputs

EPS = 1e-6
GARBAGE = np.float32(1e30)


@pytest.mark.parametrize(("groups", "width"), [(1, 32), (5, 256), (3, 38)])
@pytest.mark.parametrize("threads", [1, 4])
def test_each_layer_gets_its_norm_and_its_columns_of_the_row(
    isa: str, rng: np.random.Generator, groups: int, width: int, threads: int
) -> None:
    cols, tokens = groups * width, np.array([3, 0, 16, 40, 99], np.int32)  # the last two are not in the table
    x = np.full((5, cols + 7), GARBAGE)
    x[:, :cols] = rng.standard_normal((5, cols)) * 3
    weight = rng.standard_normal(width).astype(np.float32)
    table = reference.to_bf16(rng.standard_normal((40, cols)))
    out = np.full((5, cols + 3), GARBAGE)
    layer_inputs(isa, x, weight, EPS, tokens, kernel_ops.packed(table), 2.5, out, threads)
    assert (out[:, cols:] == GARBAGE).all()
    norms, bound = reference.rms_norm(x[:, :cols].reshape(5, groups, width), weight, EPS)
    rows = np.zeros((5, cols))
    rows[:3] = reference.from_bf16(table[tokens[:3]]) * np.float64(2.5)
    value = norms.reshape(5, cols) + rows
    limit = bound.reshape(5, cols) + 3 * reference.FP32 * (np.abs(norms.reshape(5, cols)) + np.abs(rows))
    kernel_ops.assert_within(out[:, :cols], value, limit)


def test_a_token_has_the_same_inputs_in_any_batch(isa: str, rng: np.random.Generator) -> None:
    x, weight = rng.standard_normal((6, 96)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    table, tokens = kernel_ops.packed(reference.to_bf16(rng.standard_normal((9, 96)))), np.arange(6, dtype=np.int32)
    batch = np.empty((6, 96), np.float32)
    layer_inputs(isa, x, weight, EPS, tokens, table, 1.5, batch, 4)
    for row in range(6):
        alone = np.empty((1, 96), np.float32)
        layer_inputs(isa, x[row : row + 1], weight, EPS, tokens[row : row + 1], table, 1.5, alone, 3)
        np.testing.assert_array_equal(alone[0], batch[row])
