"""Products of few panels and much depth, whose k is cut into parts that are summed one after the other."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest

FORMATS = [("bf16", 0, False), ("int8", 0, False), ("int4", 32, False), ("int4", 128, True), ("int8_group", 64, True)]
FORMATS.append(("fp8", 128, False))
N, K = 80, 3168  # three pairs of panels; twelve parts, the last of which ends in half a tile of int8


def operands(rng: np.random.Generator, m: int) -> tuple[reference.U16, reference.U16]:
    return tuple(reference.to_bf16(rng.standard_normal((rows, K))) for rows in (m, N))  # type: ignore[return-value]


def test_parts_sum_up_to_the_product(isa: str, rng: np.random.Generator) -> None:
    a, b = operands(rng, 40)
    kernel_ops.assert_within(kernel_ops.gemm(isa, a, b), *reference.matmul(a, b))


@pytest.mark.parametrize(("weights", "group", "widened"), FORMATS)
def test_parts_have_the_same_bits_divided_over_threads_or_not(
    isa: str, rng: np.random.Generator, weights: str, group: int, widened: bool
) -> None:
    a, b = operands(rng, 300)
    weight = kernel_ops.packed(b, weights=weights, group=group)
    bias = rng.standard_normal(N).astype(np.float32)
    many = kernel_ops.multiply(isa, a, weight, bias, widened=widened, threads=2)
    for m in (1, 2, 7, 13, 32):
        for threads in (1, 4, 43):
            few = kernel_ops.multiply(isa, a[:m], weight, bias, widened=widened, in_parts=True, threads=threads)
            np.testing.assert_array_equal(few, many[:m])
        np.testing.assert_array_equal(kernel_ops.multiply(isa, a[:m], weight, bias, widened=widened), many[:m])


@pytest.mark.parametrize(("weights", "group", "widened"), FORMATS)
def test_a_product_of_no_rows_is_nothing(
    isa: str, rng: np.random.Generator, weights: str, group: int, widened: bool
) -> None:
    a, b = operands(rng, 1)
    weight = kernel_ops.packed(b, weights=weights, group=group)
    for in_parts in (False, True):
        out = kernel_ops.multiply(isa, a[:0], weight, None, widened=widened, in_parts=in_parts, threads=4)
        assert out.shape == (0, N)


def test_parts_deeper_than_what_is_packed_at_once_have_the_same_bits(isa: str, rng: np.random.Generator) -> None:
    n, k = 1056, 36864  # two parts; 32 rows of one take more than a slab
    a, values = (reference.to_bf16(rng.standard_normal(count)) for count in (32 * k, 1 << 20))
    weight = kernel_ops.packed(np.resize(values, (n, k)))
    together = kernel_ops.multiply(isa, a.reshape(32, k), weight, None, in_parts=True, threads=2)
    for row in (0, 31):
        alone = kernel_ops.multiply(isa, a.reshape(32, k)[row : row + 1], weight)
        np.testing.assert_array_equal(alone, together[row : row + 1])
