"""RMS norms of vectors that ranks divide."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from numpy.typing import NDArray

F32 = NDArray[np.float32]
EPS = 1e-5
# The columns of two vectors that each rank has. In "copies" all ranks have the same columns of the second vector, in
# "overlaps" the first columns of some ranks are the last ones of others.
DIVISIONS: dict[str, list[tuple[range, range]]] = {
    "one rank": [(range(48), range(16))],
    "two ranks": [(range(96), range(33)), (range(96, 127), range(33, 40))],
    "a rank without columns": [(range(24), range(24)), (range(24, 24), range(24, 24)), (range(24, 96), range(24, 48))],
    "copies": [(range(32), range(16)), (range(32, 96), range(16)), (range(96, 112), range(16))],
    "overlaps": [(range(40), range(32)), (range(40, 72), range(16, 48)), (range(72, 96), range(32, 80))],
}


def vectors(name: str, rng: np.random.Generator, rows: int) -> tuple[list[F32], list[F32]]:
    """Rows of both vectors of all ranks, and their weights."""
    sizes = [max(each[vector].stop for each in DIVISIONS[name]) for vector in range(2)]
    values = [(rng.standard_normal((rows, size)) * 30).astype(np.float32) for size in sizes]
    return values, [rng.standard_normal(size).astype(np.float32) for size in sizes]


def normed(isa: str, name: str, values: list[F32], weights: list[F32], threads: int = 1) -> list[list[F32]]:
    """The norms of both vectors on each rank."""
    return kernel_ops.divided_norm(isa, DIVISIONS[name], values, weights, EPS, threads)


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("threads", [1, 3])
def test_all_ranks_norm_by_the_squares_of_the_whole_vector(
    isa: str, rng: np.random.Generator, name: str, rows: int, threads: int
) -> None:
    values, weights = vectors(name, rng, rows)
    expected = [reference.rms_norm(*each, EPS) for each in zip(values, weights, strict=True)]
    for columns, found in zip(DIVISIONS[name], normed(isa, name, values, weights, threads), strict=True):
        for own, result, (value, bound) in zip(columns, found, expected, strict=True):
            assert result.shape == (rows, len(own))
            if own:
                kernel_ops.assert_within(result, value[:, own], bound[:, own])


@pytest.mark.parametrize("name", DIVISIONS)
def test_a_divided_norm_has_the_same_bits_alone_and_in_any_batch(isa: str, rng: np.random.Generator, name: str) -> None:
    values, weights = vectors(name, rng, 9)
    batch = normed(isa, name, values, weights, threads=4)
    for row in range(9):
        alone = normed(isa, name, [each[row : row + 1] for each in values], weights, threads=3)
        for of_batch, found in zip(batch, alone, strict=True):
            for whole, one in zip(of_batch, found, strict=True):
                np.testing.assert_array_equal(one[0], whole[row])


def test_sums_of_squares_are_added_in_rank_order(isa: str) -> None:
    # In another order, 1 + 2^-24 + 2^-24 would not round back to 1 twice.
    x = np.array([[1.0, 2.0**-12, 2.0**-12]], np.float32)
    ranks = [(range(rank, rank + 1), range(0)) for rank in range(3)]
    empty = np.zeros((1, 0), np.float32)
    found = kernel_ops.divided_norm(isa, ranks, [x, empty], [np.ones(3, np.float32), empty[0]], 0.0)
    total = np.float32(1.0) / np.sqrt(np.float32(1.0) / np.float32(3.0))
    assert found[0][0][0, 0] == total
