"""Products of many rows: copied blocks of activations, sums in tiles, and results that are written past the caches."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from kernel_reference import U16
from numaserve.workers.program.given import GivenMatrix

WEIGHTS = ("bf16", "int8")
# Rows that fill tiles, pass alone in a last tile, or leave one to a second row block.
ROWS = (37, 48, 49, 64, 65, 80, 81, 256, 257, 293)
SMALL = (8 << 10, 16 << 10)  # caches: blocks of 4 k tiles, slabs of 8, groups of a pair; results stream from 8 KiB on
LARGE = (48 << 10, 1 << 30)  # whole slabs; nothing is streamed


def values(rng: np.random.Generator, rows: int, columns: int) -> U16:
    return reference.to_bf16(rng.standard_normal((rows, columns)))


# 5120 columns of int8 are 80 k tiles: several slabs. With few panels a product is cut into parts of k.
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("n, k", [(96, 5120), (64, 40), (1056, 1120)])
def test_many_rows_have_the_bits_of_a_row_alone(
    isa: str, rng: np.random.Generator, weights: str, n: int, k: int
) -> None:
    a, weight = values(rng, max(ROWS), k), kernel_ops.packed(values(rng, n, k), weights=weights)
    alone = {
        row: kernel_ops.multiply(isa, a[row : row + 1], weight) for row in (0, 31, 32, 36, 48, 64, 80, 255, 256, 292)
    }
    for caches in (kernel_ops.CACHES, SMALL):
        for m in ROWS:
            found = kernel_ops.multiply(isa, a[:m], weight, caches=caches)
            for row in (row for row in alone if row < m):
                np.testing.assert_array_equal(found[row : row + 1], alone[row])


# Nine pairs of panels among threads: shares that begin and end within a line of gated results, and shares of rows.
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("threads", [1, 2, 3, 5, 7])
def test_results_written_past_the_caches_have_the_same_bits(
    isa: str, rng: np.random.Generator, weights: str, threads: int
) -> None:
    a, gate, up = values(rng, 293, 1120), values(rng, 144, 1120), values(rng, 144, 1120)
    for m in (49, 160, 293):
        expected = kernel_ops.gated(isa, a[:m], gate, up, "silu", weights=weights, caches=LARGE)
        found = kernel_ops.gated(isa, a[:m], gate, up, "silu", threads, weights, caches=SMALL)
        np.testing.assert_array_equal(found, expected)
        plain = kernel_ops.packed(gate, weights=weights)
        expected = kernel_ops.multiply(isa, a[:m], plain, bf16=True, caches=LARGE)
        found = kernel_ops.multiply(isa, a[:m], plain, bf16=True, threads=threads, caches=SMALL)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_many_rows_are_added_to_what_is_there(isa: str, rng: np.random.Generator, weights: str) -> None:
    a, weight = values(rng, 100, 2048), kernel_ops.packed(values(rng, 96, 2048), weights=weights)
    before = rng.standard_normal((100, 96)).astype(np.float32)
    product = kernel_ops.multiply(isa, a, weight, caches=SMALL)
    found = kernel_ops.multiply(isa, a, weight, onto=before, caches=SMALL)
    np.testing.assert_array_equal(found, before + product)


def test_many_rows_without_depth_are_zero_and_biased(isa: str, rng: np.random.Generator) -> None:
    bias = rng.standard_normal(64).astype(np.float32)
    found = kernel_ops.multiply(isa, values(rng, 100, 0), GivenMatrix(64, 0, "bf16", 0), bias)
    np.testing.assert_array_equal(found, np.broadcast_to(bias, (100, 64)))
