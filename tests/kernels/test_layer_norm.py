"""Layer norms of rows, in fp32 and bf16, and where the rows were."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest

SIZES = [(1, 1), (3, 48), (2, 576), (7, 1000), (17, 2048)]
EPS = 1e-5


def expected(
    x: reference.F32, weight: reference.F32, bias: reference.F32 | None
) -> tuple[reference.F64, reference.F64]:
    """Values, and a bound: the sums round by their number of terms, next to the largest of a row."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    scale = 1 / np.sqrt(np.square(centred).mean(1, keepdims=True) + EPS)
    value = centred * scale * weight
    largest = np.abs(wide).max(1, keepdims=True) * scale * np.abs(weight)
    value = value if bias is None else value + bias
    return value, (reference.accumulation(x.shape[1]) + 8 * reference.FP32) * (largest + np.abs(value))


def inputs(rng: np.random.Generator, rows: int, cols: int) -> tuple[reference.F32, reference.F32, reference.F32]:
    x = (rng.standard_normal((rows, cols)) * 10 + 5).astype(np.float32)
    weight, bias = rng.standard_normal((2, cols)).astype(np.float32)
    return x, weight, bias


@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_rows_are_centred_and_scaled(
    isa: str, rng: np.random.Generator, rows: int, cols: int, threads: int, biased: bool, in_place: bool
) -> None:
    x, weight, bias = inputs(rng, rows, cols)
    added = bias if biased else None
    result = kernel_ops.layer_norm(isa, x, weight, added, EPS, in_place=in_place, threads=threads)
    kernel_ops.assert_within(result[:, :cols], *expected(x, weight, added))
    assert (result[:, cols:] == 0).all()


@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("threads", [1, 5])
def test_in_bf16_they_are_the_same_rounded(
    isa: str, rng: np.random.Generator, rows: int, cols: int, threads: int
) -> None:
    x, weight, bias = inputs(rng, rows, cols)
    exact = kernel_ops.layer_norm(isa, x, weight, bias, EPS)
    result = kernel_ops.layer_norm_rounded(isa, x, weight, bias, EPS, threads=threads)
    np.testing.assert_array_equal(result, reference.to_bf16(exact))


def test_a_row_has_the_same_bits_alone_and_in_any_batch(isa: str, rng: np.random.Generator) -> None:
    x, weight, bias = inputs(rng, 9, 576)
    batch = kernel_ops.layer_norm(isa, x, weight, bias, EPS, threads=4)
    for row in range(9):
        alone = kernel_ops.layer_norm(isa, x[row : row + 1], weight, bias, EPS, threads=3)
        np.testing.assert_array_equal(alone[0], batch[row])


def test_an_offset_costs_no_digits(isa: str, rng: np.random.Generator) -> None:
    x, weight, bias = inputs(rng, 4, 768)
    shifted = x + np.float32(2.0**14)
    moved = shifted - np.float32(2.0**14)  # what the sum has kept of x
    result = kernel_ops.layer_norm(isa, shifted, weight, bias, EPS)
    value, bound = expected(moved, weight, bias)
    # The mean alone rounds with the offset: by half a unit of its last place, 2^-10.
    kernel_ops.assert_within(result[:, :768], value, bound + 2.0**-9 * np.abs(weight))
