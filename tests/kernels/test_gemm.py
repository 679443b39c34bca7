"""The packed linear layer: right within its bound, and the same bits whatever is in the batch."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from numaserve.workers.program.given import GivenMatrix

SHAPES = [
    (1, 16, 32),
    (1, 1, 1),
    (2, 17, 33),
    (3, 100, 64),
    (13, 40, 257),
    (16, 96, 576),
    (17, 31, 31),
    (33, 65, 511),
    (63, 48, 513),
    (129, 70, 1000),
    (300, 33, 1100),
]


def _bf16(rng: np.random.Generator, *shape: int) -> reference.U16:
    return reference.to_bf16(rng.standard_normal(shape))


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_product_is_within_the_rounding_error_of_its_length(
    isa: str, rng: np.random.Generator, m: int, n: int, k: int, threads: int
) -> None:
    a, b = _bf16(rng, m, k), _bf16(rng, n, k)
    kernel_ops.assert_within(kernel_ops.gemm(isa, a, b, threads=threads), *reference.matmul(a, b))


@pytest.mark.parametrize("m", [1, 16, 32, 81, 300])
def test_a_product_without_depth_is_zero(isa: str, m: int) -> None:
    # As of a rank without heads: what it adds to the others' sums.
    for format, group, widened in (("bf16", 0, False), ("int4", 32, False), ("int4", 128, True), ("fp8", 64, False)):
        weight = GivenMatrix(96, 0, format, group)
        result = kernel_ops.multiply(isa, np.zeros((m, 0), np.uint16), weight, widened=widened)
        np.testing.assert_array_equal(result, np.zeros((m, 96)))


def test_a_bias_is_added_in_fp32(isa: str, rng: np.random.Generator) -> None:
    a, b = _bf16(rng, 5, 70), _bf16(rng, 45, 70)
    bias = rng.standard_normal(45).astype(np.float32) * 100
    kernel_ops.assert_within(kernel_ops.gemm(isa, a, b, bias), *reference.matmul(a, b, bias))


def test_a_bf16_result_is_the_fp32_result_rounded_to_even(isa: str, rng: np.random.Generator) -> None:
    a, b = _bf16(rng, 9, 200), _bf16(rng, 50, 200)
    np.testing.assert_array_equal(kernel_ops.gemm(isa, a, b, bf16=True), reference.to_bf16(kernel_ops.gemm(isa, a, b)))


@pytest.mark.parametrize("k", [64, 576, 1536])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(isa: str, rng: np.random.Generator, k: int) -> None:
    a, b = _bf16(rng, 260, k), _bf16(rng, 48, k)
    alone = np.concatenate([kernel_ops.gemm(isa, a[i : i + 1], b) for i in range(a.shape[0])])
    for m in (2, 11, 12, 13, 16, 17, 31, 32, 33, 128, 129, 160, 260):
        np.testing.assert_array_equal(kernel_ops.gemm(isa, a[:m], b), alone[:m])
    np.testing.assert_array_equal(kernel_ops.gemm(isa, a[100:177], b), alone[100:177])


@pytest.mark.parametrize(("weights", "group"), [("bf16", 0), ("int8", 0), ("int4", 32), ("fp8", 128)])
def test_rows_that_are_too_deep_for_one_slab_have_the_same_bits_alone(
    isa: str, rng: np.random.Generator, weights: str, group: int
) -> None:
    a, b = _bf16(rng, 32, 17024), _bf16(rng, 64, 17024)
    weight = kernel_ops.packed(b, weights=weights, group=group)
    together = kernel_ops.multiply(isa, a, weight)
    for row in (0, 13, 31):
        np.testing.assert_array_equal(kernel_ops.multiply(isa, a[row : row + 1], weight), together[row : row + 1])


@pytest.mark.parametrize("m", [1, 40, 200, 600])
def test_the_number_of_threads_does_not_change_a_bit(isa: str, rng: np.random.Generator, m: int) -> None:
    a, b = _bf16(rng, m, 640), _bf16(rng, 170, 640)
    one = kernel_ops.gemm(isa, a, b)
    for threads in (2, 3, 4, 7, 16, 43):
        np.testing.assert_array_equal(kernel_ops.gemm(isa, a, b, threads=threads), one)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "geglu"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 32, 64), (5, 48, 100), (40, 96, 576), (130, 64, 96)])
def test_a_gated_activation_is_within_its_bound(
    isa: str, rng: np.random.Generator, name: str, m: int, n: int, k: int
) -> None:
    a, gate, up = _bf16(rng, m, k), _bf16(rng, n, k), _bf16(rng, n, k)
    result = kernel_ops.gated(isa, a, gate, up, name, threads=2)
    kernel_ops.assert_within(result, *reference.gated(a, gate, up, name))


@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "geglu"])
def test_gates_far_out_neither_overflow_nor_vanish(isa: str, name: str) -> None:
    gates = np.array([-1e30, -1e4, -100.0, -88.0, -20.0, 0.0, 20.0, 88.0, 100.0, 1e4, 1e30])
    a = reference.to_bf16(np.eye(len(gates)))
    gate = np.zeros((16, len(gates)))
    gate[:] = gates
    up = np.ones((16, len(gates)))
    result = reference.from_bf16(kernel_ops.gated(isa, a, reference.to_bf16(gate), reference.to_bf16(up), name))
    expected = np.where(gates > 0, reference.rounded(gates), 0.0)
    np.testing.assert_allclose(result[:, 0], expected, rtol=2 * reference.BF16, atol=1e-7)


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_biases_are_added_before_an_activation(isa: str, rng: np.random.Generator, weights: str) -> None:
    a, gate, up = _bf16(rng, 40, 100), _bf16(rng, 48, 100), _bf16(rng, 48, 100)
    biases = (rng.standard_normal(48).astype(np.float32), rng.standard_normal(48).astype(np.float32))
    result = kernel_ops.gated(isa, a, gate, up, "silu", threads=2, weights=weights, biases=biases)
    g, u = (
        kernel_ops.gemm(isa, a, half, bias, weights=weights).astype(np.float64)
        for half, bias in zip((gate, up), biases, strict=True)
    )
    kernel_ops.assert_within(result, *reference.gated_sums((g, 0.0), (u, 0.0), "silu"))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["gelu", "plain_gelu_tanh", "relu2"])
def test_an_activation_without_gates_is_within_its_bound(
    isa: str, rng: np.random.Generator, name: str, biased: bool
) -> None:
    a, b = _bf16(rng, 40, 100), _bf16(rng, 70, 100)
    bias = rng.standard_normal(70).astype(np.float32) if biased else None
    sums = kernel_ops.gemm(isa, a, b, bias).astype(np.float64)
    value = np.square(np.maximum(sums, 0)) if name == "relu2" else reference.activation(name, sums)
    result = kernel_ops.ungated(isa, a, b, name, bias, threads=2)
    kernel_ops.assert_within(result, value, reference.BF16 * np.abs(value) + 3e-7 * np.abs(sums))


@pytest.mark.parametrize("limit", [2.0, 7.0])
def test_gate_and_up_are_clamped(isa: str, rng: np.random.Generator, limit: float) -> None:
    a, gate, up = _bf16(rng, 40, 100), _bf16(rng, 96, 100), _bf16(rng, 96, 100)
    biases = (rng.standard_normal(96).astype(np.float32), rng.standard_normal(96).astype(np.float32))
    result = kernel_ops.gated(isa, a, gate, up, "swiglu_oai", biases=biases, limit=limit)
    kernel_ops.assert_within(result, *reference.gated(a, gate, up, "swiglu_oai", biases, limit))


def test_clamping_hides_no_nan(isa: str) -> None:
    a, weight = reference.to_bf16(np.eye(32)), np.zeros((16, 32))
    weight[0, 0] = np.nan
    ones = reference.to_bf16(np.ones((16, 32)))
    for gate, up in ((reference.to_bf16(weight), ones), (ones, reference.to_bf16(weight))):
        result = reference.from_bf16(kernel_ops.gated(isa, a, gate, up, "swiglu_oai", limit=7.0))
        assert np.isnan(result[0, 0])


def test_products_of_small_integers_are_exact(isa: str, rng: np.random.Generator) -> None:
    a = reference.to_bf16(rng.integers(-8, 9, (37, 300)).astype(np.float32))
    b = reference.to_bf16(rng.integers(-8, 9, (55, 300)).astype(np.float32))
    exact = reference.from_bf16(a) @ reference.from_bf16(b).T
    np.testing.assert_array_equal(kernel_ops.gemm(isa, a, b), exact)


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4", "fp8"])
def test_the_sizes_of_the_caches_change_no_bit(isa: str, rng: np.random.Generator, weights: str) -> None:
    a, b = (reference.to_bf16(rng.standard_normal(shape)) for shape in ((300, 2100), (200, 2100)))
    weight = kernel_ops.packed(b, weights=weights, group=64 if weights in ("int4", "fp8") else 0)
    results = [
        kernel_ops.multiply(isa, a, weight, caches=caches, threads=2)
        for caches in ((8 << 10, 64 << 10), (32 << 10, 1 << 20), (1 << 20, 1 << 26))
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4", "fp8"])
def test_a_product_is_added_to_what_is_there(isa: str, rng: np.random.Generator, weights: str) -> None:
    a, b = (reference.to_bf16(rng.standard_normal(shape)) for shape in ((40, 100), (70, 100)))
    weight = kernel_ops.packed(b, weights=weights, group=32 if weights in ("int4", "fp8") else 0)
    there = rng.standard_normal((40, 70)).astype(np.float32)
    bias = rng.standard_normal(70).astype(np.float32)
    product = kernel_ops.multiply(isa, a, weight, bias)
    np.testing.assert_array_equal(kernel_ops.multiply(isa, a, weight, bias, onto=there, threads=2), there + product)
