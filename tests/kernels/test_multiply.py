"""Products of rows, of which one may have an activation, in fp32 and rounded."""

import math

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from numaserve_kernel_tests import multiply, multiply_rounded

GARBAGE = np.float32(1e30)


def products(
    isa: str, x: np.ndarray | None, y: np.ndarray, activation: str, threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """The products in fp32 and in bf16 of columns that garbage follows. Zeros follow the products."""
    rows, cols = y.shape
    wide = [
        None if each is None else np.hstack([each, np.full((rows, more), GARBAGE)]) for each, more in ((x, 5), (y, 3))
    ]
    padded = (-(-cols // 32) + 1) * 32
    out, rounded = np.full((rows, padded), GARBAGE), np.full((rows, padded), 0xFFFF, np.uint16)
    multiply(isa, *wide, activation, cols, out, threads)
    multiply_rounded(isa, *wide, activation, cols, rounded, threads)
    assert not out[:, cols:].any()
    assert not rounded[:, cols:].any()
    return out[:, :cols], rounded[:, :cols]


@pytest.mark.parametrize("cols", [0, 1, 16, 33, 128])
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_multiplied(isa: str, rng: np.random.Generator, cols: int, rows: int, threads: int) -> None:
    x, y = (rng.standard_normal((rows, cols)).astype(np.float32) for _ in range(2))
    out, rounded = products(isa, x, y, "none", threads)
    np.testing.assert_array_equal(out, x * y)
    np.testing.assert_array_equal(rounded, reference.to_bf16(x * y))


@pytest.mark.parametrize("cols", [1, 33, 128])
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_one_factor_has_an_activation(
    isa: str, rng: np.random.Generator, cols: int, rows: int, threads: int, activation: str
) -> None:
    x, y = (5 * rng.standard_normal((rows, cols)).astype(np.float32) for _ in range(2))
    out, rounded = products(isa, x, y, activation, threads)
    wide = y.astype(np.float64)
    inner = 0.7978845608028654 * (wide + 0.044715 * wide**3)
    value = x * wide / (1 + np.exp(-wide if activation == "silu" else -2 * inner))
    # For negative factors the approximation of GELU is a difference of numbers near one.
    bound = np.abs(value) * 16 * reference.FP32 + 8 * reference.FP32 * np.abs(wide * x) + 2.0**-126
    kernel_ops.assert_within(out, value, bound)
    kernel_ops.assert_within(rounded, value, bound + np.abs(value) * reference.BF16)


ALONE = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x * 0.5**0.5)),
}


@pytest.mark.parametrize("cols", [1, 33, 128])
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("activation", ALONE)
def test_an_activation_may_be_alone(
    isa: str, rng: np.random.Generator, cols: int, rows: int, threads: int, activation: str
) -> None:
    x = 3 * rng.standard_normal((rows, cols)).astype(np.float32)
    out, rounded = products(isa, None, x, activation, threads)
    value = ALONE[activation](x.astype(np.float64))
    # For negative numbers GELU is a difference of numbers near one, and for small ones so is tanh.
    near_one = 4 * reference.FP32 * (activation == "tanh")
    bound = np.abs(value) * 16 * reference.FP32 + 8 * reference.FP32 * np.abs(x) + near_one + 2.0**-126
    kernel_ops.assert_within(out, value, bound)
    kernel_ops.assert_within(rounded, value, bound + np.abs(value) * reference.BF16)


@pytest.mark.parametrize("activation", ALONE)
def test_an_activation_keeps_a_nan_in_its_place(isa: str, activation: str) -> None:
    x = np.ones((3, 40), np.float32)
    x[1, 17] = np.nan
    out, _ = products(isa, None, x, activation, 2)
    assert np.argwhere(np.isnan(out)).tolist() == [[1, 17]]
