"""The linear layer with weights in nvfp4, whose scaled codes are exact in bf16, against fp64."""

from __future__ import annotations

from dataclasses import dataclass

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from numaserve.kernels import PackedMatrix

SHAPES = [(1, 16, 32), (1, 1, 1), (2, 17, 33), (13, 40, 257), (17, 31, 31), (33, 65, 511), (129, 70, 1000)]
GROUPS = [32, 64, 128]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
BITS = np.array([code for code in range(256) if code & 0x7F != 0x7F])
_EXPONENTS, _MANTISSAS = BITS >> 3 & 15, (BITS & 7).astype(np.float64)
_MAGNITUDES = np.where(_EXPONENTS > 0, (1 + _MANTISSAS / 8) * 2.0 ** (_EXPONENTS - 7.0), _MANTISSAS * 2.0**-9)
E4M3 = np.where(BITS & 0x80, -_MAGNITUDES, _MAGNITUDES).astype(np.float32)


@dataclass
class Coded:
    """A quantized weight: codes [n, k], scales [n, k / 16], factors [n, 1]."""

    codes: np.ndarray
    scales: np.ndarray
    factors: np.ndarray | None = None

    @classmethod
    def random(cls, rng: np.random.Generator, n: int, k: int) -> Coded:
        scales = rng.choice(E4M3, (n, -(-k // 16)))
        factors = rng.uniform(1e-4, 1e-3, (n, 1)).astype(np.float32)
        return cls(rng.integers(0, 16, (n, k), dtype=np.uint8), scales, factors)

    def packed(self, group: int = 128, first_col: int = 0, k: int | None = None) -> PackedMatrix:
        n, cols = self.codes.shape
        matrix = PackedMatrix(n, k or cols, "nvfp4", group)
        rows = np.arange(n, dtype=np.int32)
        matrix.pack_codes(
            kernel_ops.ONE_THREAD,
            self.codes,
            self.scales,
            None,
            self.factors,
            source_group=16,
            offsets_are_zeros=False,
            rows=rows,
            dst_row=0,
            first_col=first_col,
        )
        return matrix

    def values(self) -> np.ndarray:
        """[n, k] in fp64."""
        wide = np.repeat(self.scales.astype(np.float64), 16, axis=1)[:, : self.codes.shape[1]]
        return E2M1[self.codes] * wide * (1.0 if self.factors is None else self.factors.astype(np.float64))


def _bf16(rng: np.random.Generator, *shape: int) -> reference.U16:
    return reference.to_bf16(rng.standard_normal(shape))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_a_product_is_that_of_the_scaled_values(
    isa: str, rng: np.random.Generator, m: int, n: int, k: int, group: int
) -> None:
    a, weight = _bf16(rng, m, k), Coded.random(rng, n, k)
    matrix, w = weight.packed(group), weight.values()
    np.testing.assert_array_equal(matrix.to_numpy(), w.astype(np.float32))
    x = reference.from_bf16(a).astype(np.float64)
    result = kernel_ops.multiply(isa, a, matrix, threads=2)
    kernel_ops.assert_within(result, x @ w.T, reference.accumulation(k + k // 32) * (np.abs(x) @ np.abs(w).T))


def test_every_scaled_code_is_exact(isa: str) -> None:
    """Each of 16 columns has a code, each row a scale."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (len(E4M3), 2))
    weight = Coded(codes, np.repeat(E4M3[:, None], 2, axis=1))
    identity = reference.to_bf16(np.eye(32))
    together = kernel_ops.multiply(isa, identity, weight.packed())
    np.testing.assert_array_equal(together.T, weight.values())
    alone = [kernel_ops.multiply(isa, identity[row : row + 1], weight.packed()) for row in range(32)]
    np.testing.assert_array_equal(np.concatenate(alone), together)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("k", [1104, 1152])  # the last group is cut short, or whole
def test_a_row_has_the_same_bits_in_every_batch_of_an_nvfp4_product(
    isa: str, rng: np.random.Generator, k: int, group: int
) -> None:
    a, weight = _bf16(rng, 300, k), Coded.random(rng, 70, k).packed(group)
    together = kernel_ops.multiply(isa, a, weight, threads=3)
    few = [slice(first, first + count) for first, count in enumerate(range(1, 14))]
    for rows in (*few, slice(31, 64), slice(64, 90), slice(100, 140), slice(100, 300)):
        np.testing.assert_array_equal(kernel_ops.multiply(isa, a[rows], weight), together[rows])


@pytest.mark.parametrize("first_col", [16, 48, 112])
def test_columns_may_begin_at_any_scale(first_col: int, rng: np.random.Generator) -> None:
    weight = Coded.random(rng, 33, 320)
    part = weight.packed(first_col=first_col, k=170)
    np.testing.assert_array_equal(part.to_numpy(), weight.values()[:, first_col : first_col + 170].astype(np.float32))
    with pytest.raises(ValueError, match="begin at a group boundary"):
        weight.packed(first_col=first_col + 8, k=100)


@pytest.mark.parametrize("scale", [1.0625, 480.0, 2.0**-10, -449.0, np.inf, np.nan])
def test_a_scale_that_is_no_e4m3_is_refused(scale: float) -> None:
    weight = Coded(np.zeros((1, 32), np.uint8), np.full((1, 2), scale, np.float32))
    with pytest.raises(ValueError, match="a scale of nvfp4 weights is not a number of e4m3"):
        weight.packed()


def test_factors_are_of_rows_and_of_nvfp4_alone(rng: np.random.Generator) -> None:
    weight = Coded.random(rng, 4, 32)
    weight.factors = np.ones((3, 1), np.float32)
    with pytest.raises(ValueError, match="one factor for each weight row"):
        weight.packed()
    matrix, rows = PackedMatrix(4, 32, "int4", 32), np.arange(4, dtype=np.int32)
    scales, factors = np.ones((4, 1), np.float32), np.ones((4, 1), np.float32)
    with pytest.raises(ValueError, match="only nvfp4 weights have factors"):
        matrix.pack_codes(
            kernel_ops.ONE_THREAD,
            weight.codes,
            scales,
            None,
            factors,
            source_group=32,
            offsets_are_zeros=False,
            rows=rows,
            dst_row=0,
        )


def test_values_are_not_rounded_to_nvfp4(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="weights cannot be quantized to nvfp4"):
        kernel_ops.packed(_bf16(rng, 5, 64), weights="nvfp4", group=32)
