"""The vectors of sequences: a row, or the mean or the maximum of all rows, of their norms or of what they are."""

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest

SEQUENCES = [(0, 1), (1, 7), (8, 2), (10, 30)]
ROWS = 40
POOLINGS = {
    "last": lambda rows: rows[-1],
    "cls": lambda rows: rows[0],
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.max(0),
}


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("cols", [1, 48, 576, 1000])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_sequence_has_the_vector_of_its_rows(
    isa: str, rng: np.random.Generator, pooling: str, normalised: bool, cols: int, threads: int
) -> None:
    x = (rng.standard_normal((ROWS, cols)) * 30).astype(np.float32)
    weight = rng.standard_normal(cols).astype(np.float32) if normalised else None
    result = kernel_ops.pool(isa, x, SEQUENCES, weight, pooling=pooling, threads=threads)
    rows, bounds = x.astype(np.float64), np.zeros((ROWS, cols))
    if weight is not None:
        rows, bounds = reference.rms_norm(x, weight, 1e-5)
    parts = [slice(first, first + count) for first, count in SEQUENCES]
    expected = np.stack([POOLINGS[pooling](rows[part]) for part in parts])
    # A sum of at most 30 rows, and each row's own error.
    bound = np.stack([bounds[part].max(0) + 32 * reference.FP32 * np.abs(rows[part]).max(0) for part in parts])
    kernel_ops.assert_within(result[:, :cols], expected, bound)
    assert (result[:, cols:] == 0).all()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_has_the_same_bits_alone_and_among_others(isa: str, rng: np.random.Generator, pooling: str) -> None:
    x = rng.standard_normal((ROWS, 576)).astype(np.float32)
    weight = rng.standard_normal(576).astype(np.float32)
    together = kernel_ops.pool(isa, x, SEQUENCES, weight, pooling=pooling, threads=4)
    for index, (first, count) in enumerate(SEQUENCES):
        alone = kernel_ops.pool(isa, x[first : first + count], [(0, count)], weight, pooling=pooling, threads=3)
        np.testing.assert_array_equal(alone[0], together[index])
