"""The linear layer with weights in groups: int4, int8_group, mxfp4 and iq against whole-number sums, fp8 against
fp64."""

from __future__ import annotations

from dataclasses import dataclass

import kernel_ops
import kernel_reference as reference
import numpy as np
import pytest
from numaserve.kernels import PackedMatrix

SHAPES = [(1, 16, 32), (1, 1, 1), (2, 17, 33), (13, 40, 257), (17, 31, 31), (33, 65, 511), (129, 70, 1000)]
GROUPS = [32, 64, 128]
ZERO = {"int4": 8, "int8_group": 128}
TABLES = {  # values by their codes
    "mxfp4": np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]),
    "iq4": np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]),
    "iq3": np.array([4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62]),
    "iq2": np.array([8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43, 0, 0, 0, 0, 0]),
}
IQ = ("iq4", "iq3", "iq2")


@dataclass
class Coded:
    """A random quantized weight; groups are of `group` columns."""

    format: str
    group: int
    codes: np.ndarray  # [n, k]
    scales: np.ndarray  # [n, groups]
    zeros: np.ndarray | None = None
    minima: np.ndarray | None = None

    @classmethod
    def random(cls, rng: np.random.Generator, n: int, k: int, format: str, group: int, offsets: str = "none") -> Coded:
        shape = (n, -(-k // group))
        scales = (rng.standard_normal(shape) * 0.02).astype(np.float16).astype(np.float32)
        if format in TABLES:
            powers = np.ldexp(np.float32(1), rng.integers(-9, -4, shape)).astype(np.float32)
            codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
            return cls(format, group, codes, powers if format == "mxfp4" else scales)
        codes = rng.integers(0, 2 * ZERO[format], (n, k), dtype=np.uint8)
        zeros = rng.integers(0, 2 * ZERO[format], shape).astype(np.float32) if offsets == "zeros" else None
        minima = (rng.standard_normal(shape) * 0.1).astype(np.float16).astype(np.float32)
        return cls(format, group, codes, scales, zeros, minima if offsets == "minima" else None)

    @property
    def offsets(self) -> str:
        return "zeros" if self.zeros is not None else "minima" if self.minima is not None else "none"

    def packed(self, group: int | None = None, first_col: int = 0, k: int | None = None) -> PackedMatrix:
        n, cols = self.codes.shape
        matrix = PackedMatrix(n, k or cols, self.format, group or self.group, self.offsets)
        matrix.pack_codes(
            kernel_ops.ONE_THREAD,
            self.codes,
            self.scales,
            self.zeros if self.zeros is not None else self.minima,
            source_group=self.group,
            offsets_are_zeros=self.zeros is not None,
            rows=np.arange(n, dtype=np.int32),
            dst_row=0,
            first_col=first_col,
        )
        return matrix

    def values(self) -> np.ndarray:
        """[n, k] in fp64."""
        if self.format in TABLES:
            values = TABLES[self.format][self.codes]
            return np.repeat(self.scales, self.group, axis=1)[:, : values.shape[1]] * values
        wide = [np.repeat(x, self.group, axis=1)[:, : self.codes.shape[1]] for x in (self.scales, self._offset())]
        if self.minima is not None:
            return wide[0] * self.codes.astype(np.float64) + wide[1]
        return wide[0] * (self.codes.astype(np.float64) - wide[1])

    def _offset(self) -> np.ndarray:
        constant = np.full(self.scales.shape, float(ZERO[self.format]))
        return self.zeros if self.zeros is not None else self.minima if self.minima is not None else constant


def _bf16(rng: np.random.Generator, *shape: int) -> reference.U16:
    return reference.to_bf16(rng.standard_normal(shape))


def _grouped_activations(a: reference.U16, group: int) -> np.ndarray:
    """a [m, k] quantized in groups along k, back in fp64."""
    m, k = a.shape
    wide = np.pad(reference.from_bf16(a), [(0, 0), (0, -k % group)]).reshape(-1, group)
    codes, scales = reference.quantized(wide)
    return (codes.astype(np.float64) * scales[:, None]).reshape(m, -1)[:, :k]


def _assert_product(result: np.ndarray, x: np.ndarray, w: np.ndarray, group: int, offset: float = 0.0) -> None:
    """Sums inside a group are exact: what is rounded is a few operations for each group."""
    groups = -(-x.shape[1] // group)
    magnitude = np.abs(x) @ (np.abs(w) + offset).T
    kernel_ops.assert_within(result, x @ w.T, (groups + 6) * 2 * reference.FP32 * magnitude)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("offsets", ["none", "zeros", "minima"])
@pytest.mark.parametrize("format", ["int4", "int8_group"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_a_product_is_that_of_the_quantized_values(
    isa: str, rng: np.random.Generator, m: int, n: int, k: int, format: str, offsets: str, group: int
) -> None:
    a, weight = _bf16(rng, m, k), Coded.random(rng, n, k, format, group, offsets)
    result = kernel_ops.multiply(isa, a, weight.packed(), threads=2)
    largest = 0.02 * 5 * 2 * ZERO[format] if offsets != "none" else 0.0
    _assert_product(result, _grouped_activations(a, group), weight.values(), group, largest)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("offsets", ["none", "zeros", "minima"])
@pytest.mark.parametrize("format", ["int4", "int8_group"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_with_activations_in_bf16_a_product_is_that_of_the_weights(
    isa: str, rng: np.random.Generator, m: int, n: int, k: int, format: str, offsets: str, group: int
) -> None:
    a, weight = _bf16(rng, m, k), Coded.random(rng, n, k, format, group, offsets)
    x, w = reference.from_bf16(a).astype(np.float64), weight.values()
    result = kernel_ops.multiply(isa, a, weight.packed(), widened=True, threads=2)
    largest = 0.02 * 5 * 2 * ZERO[format] if offsets != "none" else 0.0
    kernel_ops.assert_within(
        result, x @ w.T, 2 * reference.accumulation(k + k // 32) * (np.abs(x) @ (np.abs(w) + largest).T)
    )


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_an_fp8_product_is_that_of_the_values(
    isa: str, rng: np.random.Generator, m: int, n: int, k: int, group: int
) -> None:
    a, b = _bf16(rng, m, k), _bf16(rng, n, k)
    matrix = kernel_ops.packed(b, weights="fp8", group=group)
    x, w = reference.from_bf16(a).astype(np.float64), matrix.to_numpy().astype(np.float64)
    result = kernel_ops.multiply(isa, a, matrix, threads=2)
    kernel_ops.assert_within(result, x @ w.T, reference.accumulation(k + k // 32) * (np.abs(x) @ np.abs(w).T))


@pytest.mark.parametrize("format", TABLES)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_a_product_with_codes_by_a_table_is_that_of_the_values(
    isa: str, rng: np.random.Generator, m: int, n: int, k: int, format: str
) -> None:
    a, weight = _bf16(rng, m, k), Coded.random(rng, n, k, format, 32)
    matrix, w = weight.packed(), weight.values()
    np.testing.assert_array_equal(matrix.to_numpy(), w)
    _assert_product(kernel_ops.multiply(isa, a, matrix, threads=2), _grouped_activations(a, 32), w, 32)
    x = reference.from_bf16(a).astype(np.float64)
    result = kernel_ops.multiply(isa, a, matrix, widened=True, threads=2)
    kernel_ops.assert_within(result, x @ w.T, reference.accumulation(k + k // 32) * (np.abs(x) @ np.abs(w).T))


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize("format", TABLES)
def test_a_row_has_the_same_bits_in_every_batch_of_a_product_with_codes_by_a_table(
    isa: str, rng: np.random.Generator, format: str, widened: bool
) -> None:
    a, weight = _bf16(rng, 300, 1100), Coded.random(rng, 70, 1100, format, 32).packed()
    together = kernel_ops.multiply(isa, a, weight, widened=widened, threads=3)
    for rows in (slice(0, 1), slice(7, 20), slice(31, 64), slice(64, 90), slice(100, 140), slice(100, 300)):
        np.testing.assert_array_equal(kernel_ops.multiply(isa, a[rows], weight, widened=widened), together[rows])


@pytest.mark.parametrize("format", TABLES)
def test_every_code_by_a_table_and_every_scale_is_widened_exactly(isa: str, format: str) -> None:
    exponents = np.array([-127, -126, -125, -64, -1, 0, 1, 64, 125] if format == "mxfp4" else [-64, -1, 0, 1, 64])
    codes = np.zeros((len(exponents), 32), np.uint8)
    codes[:, :16] = np.arange(16)
    scales = np.ldexp(1.0, exponents).astype(np.float32)[:, None]
    matrix = Coded(format, 32, codes, scales).packed()
    expected = (np.ldexp(1.0, exponents)[:, None] * TABLES[format][codes]).astype(np.float32)
    np.testing.assert_array_equal(matrix.to_numpy(), expected)
    if format == "mxfp4" and isa.startswith("amx"):  # tiles take values below 2^-126 for zero
        expected = np.where(exponents[:, None] < -125, np.float32(0), expected)
    identity = reference.to_bf16(np.eye(32))
    np.testing.assert_array_equal(kernel_ops.multiply(isa, identity, matrix, widened=True).T, expected)
    alone = [kernel_ops.multiply(isa, identity[row : row + 1], matrix, widened=True) for row in range(32)]
    np.testing.assert_array_equal(np.concatenate(alone).T, expected)


@pytest.mark.parametrize("scale", [0.0, -1.0, 3.0, 2.0**-128, np.inf, np.nan])
def test_a_scale_of_mxfp4_that_is_no_power_of_two_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="a scale of mxfp4 weights is not a power of two"):
        Coded("mxfp4", 32, np.zeros((1, 32), np.uint8), np.full((1, 1), scale, np.float32)).packed()


def test_a_scale_of_mxfp4_whose_values_exceed_bf16_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a scale of mxfp4 weights is larger than 2\^125"):
        Coded("mxfp4", 32, np.zeros((1, 32), np.uint8), np.full((1, 1), 2.0**126, np.float32)).packed()


@pytest.mark.parametrize("rows", [33, 70])
def test_a_row_has_the_same_bits_beside_others_in_every_block_and_slab_of_scaled_values(
    isa: str, rng: np.random.Generator, rows: int
) -> None:
    a, weight = _bf16(rng, rows, 2200), Coded.random(rng, 2112, 2200, "mxfp4", 32).packed()
    together = kernel_ops.multiply(isa, a, weight, widened=True, threads=2)
    for row in (0, 31, rows - 1):
        np.testing.assert_array_equal(
            kernel_ops.multiply(isa, a[row : row + 1], weight, widened=True)[0], together[row]
        )


def test_values_are_not_rounded_to_codes_by_a_table(rng: np.random.Generator) -> None:
    for format in TABLES:
        with pytest.raises(ValueError, match=f"weights cannot be quantized to {format}"):
            kernel_ops.packed(_bf16(rng, 5, 64), weights=format, group=32)
    with pytest.raises(ValueError, match=r"this weight format does not support offsets \(zero points\)"):
        PackedMatrix(5, 64, "iq4", 32, "minima")
    with pytest.raises(ValueError, match="the group size of mxfp4 must be 32"):
        PackedMatrix(5, 64, "mxfp4", 64)


BATCHED = [("int4", 32), ("int4", 128), ("int8_group", 32)]


@pytest.mark.parametrize(
    ("format", "group", "widened"),
    [*((*each, widened) for each in BATCHED for widened in (False, True)), ("fp8", 128, False)],
)
@pytest.mark.parametrize("k", [1100, 1152])  # the last group of 128 is cut short, or whole
def test_a_row_has_the_same_bits_in_every_batch(
    isa: str, rng: np.random.Generator, format: str, group: int, k: int, widened: bool
) -> None:
    a, weight = _bf16(rng, 300, k), kernel_ops.packed(_bf16(rng, 70, k), weights=format, group=group)
    together = kernel_ops.multiply(isa, a, weight, widened=widened, threads=3)
    few = [slice(first, first + count) for first, count in enumerate(range(1, 14))]
    for rows in (*few, slice(31, 64), slice(64, 90), slice(100, 140), slice(100, 300)):
        np.testing.assert_array_equal(kernel_ops.multiply(isa, a[rows], weight, widened=widened), together[rows])


@pytest.mark.parametrize(
    ("format", "offsets", "group"),
    [
        ("mxfp4", "none", 32),
        *((format, "none", group) for format in IQ for group in GROUPS),
        *((format, offsets, group) for format in ZERO for offsets in ("none", "zeros", "minima") for group in GROUPS),
    ],
)
def test_sums_of_whole_numbers_have_the_same_bits_in_every_batch_and_set(
    isa: str, rng: np.random.Generator, format: str, offsets: str, group: int
) -> None:
    a, weight = _bf16(rng, 81, 300), Coded.random(rng, 70, 300, format, group, offsets).packed()
    a[::5, :128] = reference.to_bf16(rng.standard_normal(128) * 1e-37)  # so small that a group has no inverse scale
    expected = kernel_ops.multiply("portable", a, weight)
    for count in (1, 5, 9, 11, 12, 13, 16, 17, 31, 32, 33, 47, 64, 81):
        np.testing.assert_array_equal(kernel_ops.multiply(isa, a[-count:], weight), expected[-count:])


@pytest.mark.parametrize("offsets", ["none", "minima"])
def test_every_number_of_groups_has_the_same_bits_in_every_set(
    isa: str, rng: np.random.Generator, offsets: str
) -> None:
    for groups in range(1, 24):
        a, weight = _bf16(rng, 40, 32 * groups), Coded.random(rng, 32, 32 * groups, "int4", 32, offsets).packed()
        expected = kernel_ops.multiply("portable", a, weight)
        for count in (16, 17, 40):
            np.testing.assert_array_equal(kernel_ops.multiply(isa, a[:count], weight), expected[:count])


@pytest.mark.parametrize("format", ["int4", "int8_group"])
def test_more_groups_than_one_slab_holds_have_the_same_bits_in_every_set(
    isa: str, rng: np.random.Generator, format: str
) -> None:
    a, weight = _bf16(rng, 100, 6560), Coded.random(rng, 40, 6560, format, 32, "minima").packed()
    np.testing.assert_array_equal(kernel_ops.multiply(isa, a, weight), kernel_ops.multiply("portable", a, weight))


@pytest.mark.parametrize(
    ("format", "group"),
    [("mxfp4", 32), *((format, group) for format in ("int4", "int8_group", *IQ) for group in GROUPS)],
)
def test_sums_of_the_largest_codes_by_the_largest_activations_are_exact(isa: str, format: str, group: int) -> None:
    largest = int(np.abs(TABLES[format]).argmax()) if format in TABLES else 2 * ZERO[format] - 1
    codes = np.zeros((32, 2 * group), np.uint8)
    codes[::2] = largest
    scales = np.ones((32, 2), np.float32)
    for sign in (1.0, -1.0):
        a = reference.to_bf16(np.full((40, 2 * group), sign * 127.0))
        weight = Coded(format, group, codes, scales)
        for m in (1, 6, 7, 9, 16, 17, 40):
            result = kernel_ops.multiply(isa, a[:m], weight.packed())
            np.testing.assert_array_equal(result, reference.from_bf16(a[:m]).astype(np.float64) @ weight.values().T)


def test_every_e4m3_code_is_widened_exactly(isa: str) -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    weight = np.zeros((len(codes), 32), np.uint8)
    weight[np.arange(len(codes)), np.arange(len(codes)) % 32] = codes
    matrix = PackedMatrix(len(codes), 32, "fp8", 32)
    ones = np.ones((len(codes), 1), np.float32)
    rows = np.arange(len(codes), dtype=np.int32)
    matrix.pack_codes(
        kernel_ops.ONE_THREAD, weight, ones, None, source_group=32, offsets_are_zeros=False, rows=rows, dst_row=0
    )
    identity = reference.to_bf16(np.eye(32))
    together = kernel_ops.multiply(isa, identity, matrix)
    alone = np.concatenate([kernel_ops.multiply(isa, identity[row : row + 1], matrix) for row in range(32)])
    np.testing.assert_array_equal(alone, together)
    result = together[np.arange(len(codes)) % 32, np.arange(len(codes))]
    exponent, mantissa = (codes >> 3 & 15).astype(np.int64), (codes & 7).astype(np.float64)
    magnitude = np.where(exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa * 2.0**-9)
    np.testing.assert_array_equal(result, np.where(codes & 0x80, -magnitude, magnitude))


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("format", ["int4", "int8_group"])
def test_a_gated_activation_is_that_of_the_scaled_sums(
    isa: str, rng: np.random.Generator, name: str, format: str
) -> None:
    a, gate, up = _bf16(rng, 40, 576), _bf16(rng, 96, 576), _bf16(rng, 96, 576)
    result = kernel_ops.gated(isa, a, gate, up, name, threads=2, weights=format, group=32)
    g, u = (kernel_ops.gemm(isa, a, half, weights=format, group=32).astype(np.float64) for half in (gate, up))
    kernel_ops.assert_within(result, *reference.gated_sums((g, 0.0), (u, 0.0), name))


def test_a_bias_is_added_to_the_scaled_sum(isa: str, rng: np.random.Generator) -> None:
    a, b, bias = _bf16(rng, 5, 70), _bf16(rng, 45, 70), rng.standard_normal(45).astype(np.float32)
    plain, biased = (kernel_ops.gemm(isa, a, b, each, weights="int4", group=32) for each in (None, bias))
    np.testing.assert_array_equal(biased, plain + bias)
