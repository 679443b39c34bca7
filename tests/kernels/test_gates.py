"""Norms of heads times silu(gate) or sigmoid(gate), and products with sigmoid(gate)."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from numaserve_kernel_tests import gated_head_norm, sigmoid_gate

EPS = 1e-6
GARBAGE = np.float32(1e30)


def with_garbage(x: np.ndarray, columns: int) -> np.ndarray:
    return np.hstack([x, np.full((len(x), columns - x.shape[1]), GARBAGE, np.float32)])


@pytest.mark.parametrize(("heads", "dim"), [(3, 128), (2, 16), (5, 24), (3, 7), (1, 1), (0, 16)])
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(("threads", "silu"), [(1, True), (4, True), (4, False)])
def test_each_head_is_normed_and_gated(
    isa: str, rng: np.random.Generator, heads: int, dim: int, rows: int, threads: int, silu: bool
) -> None:
    cols = heads * dim
    x, gate = (rng.standard_normal((rows, cols)).astype(np.float32) * 5 for _ in range(2))
    weight = rng.standard_normal(dim).astype(np.float32)
    out = np.full((rows, -(-cols // 32) * 32), 0xFFFF, np.uint16)
    gated_head_norm(
        isa, with_garbage(x, cols + 3), with_garbage(gate, cols + 5), weight, EPS, heads, out, threads, silu
    )
    assert not out[:, cols:].any()
    if not heads:
        return
    wide = x.astype(np.float64).reshape(rows, heads, dim)
    scale = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPS)
    gated = (gate.astype(np.float64) if silu else 1.0) / (1 + np.exp(-gate.astype(np.float64)))
    value = (wide * scale * weight).reshape(rows, cols) * gated
    bound = np.abs(value) * (reference.BF16 + reference.accumulation(dim) + 16 * reference.FP32) + 1e-38
    kernel_ops.assert_within(out[:, :cols], value, bound)


def test_a_head_has_the_same_bits_in_any_batch(isa: str, rng: np.random.Generator) -> None:
    x, gate = (rng.standard_normal((9, 3 * 40)).astype(np.float32) for _ in range(2))
    weight, batch = rng.standard_normal(40).astype(np.float32), np.empty((9, 128), np.uint16)
    gated_head_norm(isa, x, gate, weight, EPS, 3, batch, 4)
    for row in range(9):
        alone = np.empty((1, 128), np.uint16)
        gated_head_norm(isa, x[row : row + 1], gate[row : row + 1], weight, EPS, 3, alone, 7)
        np.testing.assert_array_equal(alone[0], batch[row])


@pytest.mark.parametrize("cols", [1, 16, 33, 128])
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_gate_multiplies_by_its_sigmoid(
    isa: str, rng: np.random.Generator, cols: int, rows: int, threads: int
) -> None:
    gate = rng.standard_normal((rows, cols)).astype(np.float32) * 30
    x = np.zeros((rows, -(-cols // 32) * 32), np.uint16)
    x[:, :cols] = reference.to_bf16(rng.standard_normal((rows, cols)))
    before = reference.from_bf16(x[:, :cols]).astype(np.float64)
    sigmoid_gate(isa, x, with_garbage(gate, cols + 4), cols, threads)
    assert not x[:, cols:].any()
    value = before / (1 + np.exp(-gate.astype(np.float64)))
    kernel_ops.assert_within(x[:, :cols], value, np.abs(value) * (reference.BF16 + 8 * reference.FP32) + 2.0**-126)


@pytest.mark.parametrize("value", [-1e30, -200.0, 200.0, 1e30])
def test_gates_may_have_any_value(isa: str, value: float) -> None:
    gate = np.full((1, 32), value, np.float32)
    x = np.full((1, 32), reference.to_bf16(np.float32(3.0)), np.uint16)
    sigmoid_gate(isa, x, gate, 32, 1)
    np.testing.assert_allclose(reference.from_bf16(x), 3.0 if value > 0 else 0.0, atol=1e-37)
