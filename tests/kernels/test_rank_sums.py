"""The sum over ranks with the residual add, and the norm of such a sum."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest

SIZES = [(1, 16), (1, 5), (2, 33), (3, 576), (7, 100), (4, 2048), (40, 130)]


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
@pytest.mark.parametrize("with_bias", [False, True])
def test_parts_are_summed_in_rank_order_to_the_last_bit(
    isa: str, rng: np.random.Generator, num_parts: int, with_bias: bool, assign: bool
) -> None:
    residual = rng.standard_normal((5, 77)).astype(np.float32)
    parts = (rng.standard_normal((num_parts, 5, 77)) * 10.0 ** rng.integers(-3, 4, (num_parts, 5, 77))).astype(
        np.float32
    )
    bias = rng.standard_normal(77).astype(np.float32) if with_bias else None
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    if bias is not None:
        total += bias
    expected = total if assign else residual + total
    for threads in (1, 3, 8):
        result = kernel_ops.add_reduced(isa, residual, parts, bias=bias, assign=assign, threads=threads)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_a_post_norm_is_applied_to_the_sum_before_it_is_added(
    isa: str, rng: np.random.Generator, rows: int, cols: int
) -> None:
    residual = rng.standard_normal((rows, cols)).astype(np.float32)
    parts = rng.standard_normal((3, rows, cols)).astype(np.float32)
    weight = rng.standard_normal(cols).astype(np.float32)
    result = kernel_ops.add_reduced(isa, residual, parts, post_norm=weight, eps=1e-6, threads=3)
    total = (parts[0] + parts[1]) + parts[2]
    normed, bound = reference.rms_norm(total, weight, 1e-6)
    kernel_ops.assert_within(result, residual + normed, bound + reference.FP32 * np.abs(residual + normed))


@pytest.mark.parametrize("assign", [False, True])
def test_the_stream_is_scaled_after_a_normalised_sum(isa: str, rng: np.random.Generator, assign: bool) -> None:
    residual, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 77), 77))
    parts = rng.standard_normal((1, 4, 77)).astype(np.float32)
    arguments = {"post_norm": weight, "eps": 1e-6, "threads": 2}
    plain = kernel_ops.add_reduced(isa, residual, parts, **arguments)
    scaled = kernel_ops.add_reduced(isa, residual, parts, scale=0.75, assign=assign, **arguments)
    if assign:
        plain = kernel_ops.add_reduced(isa, np.zeros_like(residual), parts, **arguments)
    np.testing.assert_array_equal(scaled, plain * np.float32(0.75))
