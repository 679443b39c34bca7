"""The linear layer with int8 weights: sums of whole numbers, so every instruction set gives the reference's bits."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest

SHAPES = [
    (1, 16, 32),
    (1, 1, 1),
    (2, 17, 33),
    (13, 40, 257),
    (17, 31, 31),
    (33, 65, 511),
    (129, 70, 1000),
    (300, 33, 1100),
]


def _bf16(rng: np.random.Generator, *shape: int) -> reference.U16:
    return reference.to_bf16(rng.standard_normal(shape))


def _product(a: reference.U16, b: reference.U16) -> reference.F32:
    (x, x_scales), (w, w_scales) = (reference.quantized(reference.from_bf16(each)) for each in (a, b))
    sums = (x.astype(np.int64) @ w.astype(np.int64).T).astype(np.float32)
    return sums * x_scales[:, None] * w_scales[None, :]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_product_has_the_bits_of_the_reference(
    isa: str, rng: np.random.Generator, m: int, n: int, k: int, threads: int
) -> None:
    a, b = _bf16(rng, m, k), _bf16(rng, n, k)
    np.testing.assert_array_equal(kernel_ops.gemm(isa, a, b, threads=threads, weights="int8"), _product(a, b))


def test_a_bias_is_added_to_the_scaled_sum(isa: str, rng: np.random.Generator) -> None:
    a, b = _bf16(rng, 5, 70), _bf16(rng, 45, 70)
    bias = rng.standard_normal(45).astype(np.float32) * 100
    np.testing.assert_array_equal(kernel_ops.gemm(isa, a, b, bias, weights="int8"), _product(a, b) + bias)


def test_rows_of_very_different_size_keep_their_precision(isa: str, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((40, 96)), rng.standard_normal((32, 96))
    a, b = a * np.logspace(-20, 20, 40)[:, None], b * np.logspace(-10, 10, 32)[:, None]
    exact = a @ b.T
    result = kernel_ops.gemm(isa, reference.to_bf16(a), reference.to_bf16(b), weights="int8")
    # Half a step of 1/127 of the largest magnitude for each of 96 factors, on both sides; and bf16's own rounding.
    largest = np.abs(a).max(axis=1)[:, None] * np.abs(b).max(axis=1)[None, :]
    assert (np.abs(result - exact) <= largest * 96 * (1 / 127 + 2 * reference.BF16)).all()


def test_rows_and_weights_of_zeros_give_zeros(isa: str, rng: np.random.Generator) -> None:
    a, b = _bf16(rng, 4, 64), _bf16(rng, 32, 64)
    a[1], b[5] = 0, 0
    result = kernel_ops.gemm(isa, a, b, weights="int8")
    assert not result[1].any()
    assert not result[:, 5].any()


def test_the_largest_whole_numbers_do_not_overflow(isa: str) -> None:
    signs = np.where(np.arange(8192) % 3 == 0, -1.0, 1.0)
    a, b = reference.to_bf16(signs[None, :]), reference.to_bf16(np.stack([signs, -signs] * 16))
    result = kernel_ops.gemm(isa, a, b, weights="int8")
    np.testing.assert_allclose(np.abs(result), 8192, rtol=1e-6)
    assert (np.sign(result[0]) == [1, -1] * 16).all()


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 32, 64), (5, 48, 100), (40, 96, 576)])
def test_a_gated_activation_is_that_of_the_scaled_sums(
    isa: str, rng: np.random.Generator, name: str, m: int, n: int, k: int
) -> None:
    a, gate, up = _bf16(rng, m, k), _bf16(rng, n, k), _bf16(rng, n, k)
    result = kernel_ops.gated(isa, a, gate, up, name, threads=2, weights="int8")
    kernel_ops.assert_within(result, *reference.gated_sums((_product(a, gate), 0.0), (_product(a, up), 0.0), name))
