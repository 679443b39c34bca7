"""Packing weights of every format that checkpoints hold, against the gguf package's own dequantization."""

import gguf
import kernel_reference as reference
import numpy as np
import pytest
from numaserve.kernels import PackedMatrix, Team

QUANTIZED = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
}
PLAIN = {"bf16": reference.to_bf16, "f16": lambda x: x.astype(np.float16), "f32": lambda x: x.astype(np.float32)}
FORMATS = [*PLAIN, *QUANTIZED]


@pytest.fixture(params=[1, 3])
def team(request: pytest.FixtureRequest) -> Team:
    return Team([-1] * request.param)


def _source(rng: np.random.Generator, name: str, rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a tensor in a format, and its values rounded to bf16."""
    values = rng.standard_normal((rows, cols)).astype(np.float32)
    if name in PLAIN:
        stored = PLAIN[name](values)
        exact = reference.from_bf16(stored) if name == "bf16" else stored.astype(np.float32)
    else:
        stored = gguf.quants.quantize(values, QUANTIZED[name])
        exact = gguf.quants.dequantize(stored, QUANTIZED[name])
    return stored.reshape(-1).view(np.uint8), reference.from_bf16(reference.to_bf16(exact))


def _all(rows: int) -> np.ndarray:
    return np.arange(rows, dtype=np.int32)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 32), (16, 64), (33, 96), (100, 576), (49, 160)])
def test_a_tensor_comes_back_rounded_to_bf16(
    rng: np.random.Generator, team: Team, name: str, rows: int, cols: int
) -> None:
    data, values = _source(rng, name, rows, cols)
    matrix = PackedMatrix(rows, cols)
    matrix.pack(team, data, name, cols, _all(rows), 0)
    np.testing.assert_array_equal(matrix.to_numpy(), values)


def test_every_half_is_what_numpy_makes_of_it(team: Team) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).reshape(64, 1024)
    matrix = PackedMatrix(64, 1024)
    matrix.pack(team, halves.reshape(-1).view(np.uint8), "f16", 1024, _all(64), 0)
    with np.errstate(invalid="ignore"):
        exact = halves.view(np.float16).astype(np.float32)
    expected = np.where(np.isnan(exact), exact, reference.from_bf16(reference.to_bf16(exact)))
    np.testing.assert_array_equal(matrix.to_numpy(), expected)


def test_scales_are_rounded_to_halves_as_numpy_does(rng: np.random.Generator, team: Team) -> None:
    exponents = np.linspace(-26, 22, 4096, dtype=np.float32)  # from scales of zero to the largest
    peaks = reference.from_bf16(reference.to_bf16(np.exp2(exponents) * rng.choice([-1, 1], 4096).astype(np.float32)))
    values = np.zeros((4096, 32), np.float32)
    values[:, 5] = peaks
    matrix = PackedMatrix(4096, 32, "int8_group", 32)
    matrix.pack(team, reference.to_bf16(values).reshape(-1).view(np.uint8), "bf16", 32, _all(4096), 0)
    scales = (np.abs(peaks) / np.float32(127)).astype(np.float16).astype(np.float32)
    assert np.count_nonzero(scales == 0) > 10 and np.count_nonzero((scales > 0) & (scales < 2.0**-14)) > 100
    codes = np.rint(peaks * np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0))
    np.testing.assert_array_equal(matrix.to_numpy()[:, 5], np.clip(codes, -128, 127) * scales)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_and_columns_are_cut_out_in_any_order(rng: np.random.Generator, team: Team, name: str) -> None:
    data, values = _source(rng, name, 90, 192)
    rows = rng.permutation(90)[:37].astype(np.int32)
    matrix = PackedMatrix(37, 64)
    matrix.pack(team, data, name, 192, rows, 0, first_col=96)
    np.testing.assert_array_equal(matrix.to_numpy(), values[rows, 96:160])


@pytest.mark.parametrize(
    ("name", "kept"),
    [("q8_0", ("int8_group", 32, "none")), ("q4_0", ("int4", 32, "none")), ("q4_1", ("int4", 32, "minima"))],
)
def test_blocks_keep_their_codes_in_a_matrix_of_their_kind(
    rng: np.random.Generator, team: Team, name: str, kept: tuple[str, int, str]
) -> None:
    stored = gguf.quants.quantize(rng.standard_normal((90, 192)).astype(np.float32), QUANTIZED[name])
    rows = rng.permutation(90)[:37].astype(np.int32)
    matrix = PackedMatrix(37, 64, *kept)
    matrix.pack(team, stored.reshape(-1).view(np.uint8), name, 192, rows, 0, first_col=96)
    np.testing.assert_array_equal(matrix.to_numpy(), gguf.quants.dequantize(stored, QUANTIZED[name])[rows, 96:160])


def test_a_block_whose_scale_is_not_finite_is_refused(rng: np.random.Generator, team: Team) -> None:
    stored = gguf.quants.quantize(rng.standard_normal((33, 64)).astype(np.float32), QUANTIZED["q8_0"])
    stored[32, 35] = 0x7C
    with pytest.raises(ValueError, match="not finite"):
        PackedMatrix(33, 64, "int8_group", 32).pack(team, stored.reshape(-1).view(np.uint8), "q8_0", 64, _all(33), 0)


@pytest.mark.parametrize("name", FORMATS)
def test_int8_rows_are_scaled_by_their_largest_magnitude(rng: np.random.Generator, team: Team, name: str) -> None:
    data, values = _source(rng, name, 70, 192)
    rows = rng.permutation(70)[:49].astype(np.int32)
    matrix = PackedMatrix(49, 96, "int8")
    matrix.pack(team, data, name, 192, rows, 0, first_col=64)
    codes, scales = reference.quantized(values[rows, 64:160])
    np.testing.assert_array_equal(matrix.to_numpy(), scales[:, None] * codes)
    assert (matrix.format, matrix.nbytes) == ("int8", 64 * (128 + 8))


def test_several_tensors_fill_one_matrix(rng: np.random.Generator, team: Team) -> None:
    parts = [_source(rng, "f32", rows, 64) for rows in (40, 7, 21)]
    matrix = PackedMatrix(68, 64)
    row = 0
    for data, values in parts:
        matrix.pack(team, data, "f32", 64, _all(len(values)), row)
        row += len(values)
    np.testing.assert_array_equal(matrix.to_numpy(), np.concatenate([values for _, values in parts]))


def test_panels_of_gate_and_up_alternate(rng: np.random.Generator, team: Team) -> None:
    (gate_data, gate), (up_data, up) = (_source(rng, "bf16", 64, 96) for _ in range(2))
    matrix = PackedMatrix(128, 96)
    matrix.pack(team, gate_data, "bf16", 96, _all(64), 0, panel_stride=2, panel_offset=0)
    matrix.pack(team, up_data, "bf16", 96, _all(64), 0, panel_stride=2, panel_offset=1)
    expected = np.stack([gate.reshape(4, 16, 96), up.reshape(4, 16, 96)], axis=1).reshape(128, 96)
    np.testing.assert_array_equal(matrix.to_numpy(), expected)


@pytest.mark.parametrize(("n", "k"), [(0, 64), (64, 0)])
def test_a_rank_without_a_share_packs_nothing(rng: np.random.Generator, team: Team, n: int, k: int) -> None:
    data, _ = _source(rng, "f32", 64, 64)
    matrix = PackedMatrix(n, k)
    matrix.pack(team, data, "f32", 64, _all(n), 0)
    assert matrix.to_numpy().shape == (n, k)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("f32", {"rows": np.array([0, 4], np.int32)}),
        ("f32", {"rows": np.array([-1], np.int32)}),
        ("f32", {"first_col": 32}),
        ("f32", {"first_col": -1}),
        ("f32", {"source_cols": 32}),
        ("f32", {"dst_row": 30}),
        ("f32", {"dst_row": -1}),
        ("f32", {"panel_stride": 2, "panel_offset": 2}),
        ("f32", {"panel_stride": 0}),
        ("f32", {"panel_stride": 4, "panel_offset": 3}),
        ("f33", {}),
        ("q8_0", {"first_col": 1}),
        ("q8_0", {}),
    ],
)
def test_what_does_not_fit_is_refused(team: Team, name: str, change: dict[str, object]) -> None:
    """The tensor has four rows of 64 fp32 values: read as q8_0 its 1024 bytes would be 15 rows."""
    options = {"source_cols": 64, "rows": _all(4), "dst_row": 0, "first_col": 0} | change
    if (name, change) == ("q8_0", {}):
        options["rows"] = np.array([15], np.int32)
    with pytest.raises(ValueError, match="pack: "):
        PackedMatrix(4, 64).pack(team, np.zeros(4 * 64 * 4, np.uint8), name, **options)
