"""NVFP4 of compressed-tensors and ModelOpt: exact weights, on any number of ranks, and damage that is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import Layout, Stored
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.program.handles import MatrixFormat, matrix_bytes
from numaserve.workers.weights.packing import Packer, Place
from numaserve.workers.weights.quantized.layouts import QuantizedMatrix
from numaserve.workers.weights.safetensors_source import SafetensorsSource
from safetensors.torch import save_file

from tests.support.published_writers import Values, nvfp4

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
N, K = 40, 336
NAMES: dict[Layout, tuple[str, str]] = {
    "nvfp4_packed": ("weight_packed", "weight_global_scale"),
    "modelopt_nvfp4": ("weight", "weight_scale_2"),
}


def random_weight() -> Values:
    return np.random.default_rng(0).normal(size=(N, K)).astype(np.float32)


def save(folder: Path, layout: Layout, **edits: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = nvfp4(random_weight(), modelopt=layout == "modelopt_nvfp4").tensors | edits
    save_file({f"up.{suffix}": tensor for suffix, tensor in tensors.items()}, folder / "model.safetensors")
    return tensors


def matrix(folder: Path, layout: Layout) -> QuantizedMatrix:
    return QuantizedMatrix(SafetensorsSource(SafetensorsFiles(folder)), "up", Stored(layout, "nvfp4", bits=4), (N, K))


def wide(tensors: dict[str, torch.Tensor], layout: Layout) -> np.ndarray:
    """The weights in fp64, read byte by byte."""
    codes, of_tensor = (tensors[name] for name in NAMES[layout])
    octets = codes.numpy()
    nibbles = np.stack([octets & 15, octets >> 4], axis=2).reshape(N, K)
    scales = tensors["weight_scale"].to(torch.float64).numpy()
    whole = float(of_tensor)
    factor = whole if layout == "modelopt_nvfp4" else 1 / whole
    return E2M1[nibbles] * np.repeat(scales, 16, axis=1) * factor


@pytest.mark.parametrize("layout", NAMES)
def test_weights_are_those_of_fp64_but_for_one_rounding(layout: Layout, tmp_path: Path) -> None:
    expected = wide(save(tmp_path, layout), layout)
    for rows in (range(N), range(7, 23)):
        coded = matrix(tmp_path, layout).decode(rows)
        # The factor of the tensor is rounded once, and its products once.
        np.testing.assert_allclose(coded.dequantized(), expected[rows.start : rows.stop], rtol=2**-23)


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("columns", [(0, K), (16, 160), (176, 160), (320, 16)])
def test_a_part_is_packed_as_it_is_in_as_much_memory_as_was_counted(
    layout: Layout, columns: tuple[int, int], tmp_path: Path, team: Team
) -> None:
    save(tmp_path, layout)
    first, count = columns
    packed = PackedMatrix(N, count, "nvfp4", 128)
    rows = np.arange(N, dtype=np.int32)
    stored = Stored(layout, "nvfp4", bits=4)
    Packer(SafetensorsSource(SafetensorsFiles(tmp_path)), team).pack(
        packed, "up", rows, Place(0, first), stored=stored, shape=(N, K)
    )
    values = matrix(tmp_path, layout).decode(range(N)).dequantized()
    np.testing.assert_array_equal(packed.to_numpy(), values[:, first : first + count])
    assert packed.nbytes == matrix_bytes(N, count, MatrixFormat("nvfp4", 128))


def test_a_weight_takes_four_and_a_half_bits() -> None:
    assert matrix_bytes(4096, 4096, MatrixFormat("nvfp4", 128)) * 8 / 4096**2 == pytest.approx(4.5, abs=0.01)


@pytest.mark.parametrize(
    ("layout", "edits", "message"),
    [
        ("nvfp4_packed", {"weight_global_scale": torch.zeros(1)}, "divides weights by 0"),
        ("nvfp4_packed", {"weight_global_scale": torch.full((1,), 1e-45)}, "divides weights by 1"),
        ("nvfp4_packed", {"weight_global_scale": torch.full((1,), torch.nan)}, "scales that are not finite"),
        ("modelopt_nvfp4", {"weight_scale_2": torch.tensor(torch.inf)}, "scales that are not finite"),
        ("modelopt_nvfp4", {"weight_scale": torch.full((N, K // 16), torch.nan)}, "scales that are not finite"),
        ("modelopt_nvfp4", {"weight": torch.zeros(N, K, dtype=torch.uint8)}, r"shape \[40, 168\]"),
        ("nvfp4_packed", {"weight_global_scale": torch.ones(2)}, r"of shape \[\] or \[1\]"),
    ],
)
def test_damaged_tensors_are_named(layout: Layout, edits: dict[str, Any], message: str, tmp_path: Path) -> None:
    if "weight_scale" in edits:
        edits = {"weight_scale": edits["weight_scale"].to(torch.float8_e4m3fn)}
    save(tmp_path, layout, **edits)
    with pytest.raises(OperatorError, match=message):
        matrix(tmp_path, layout).decode(range(N))


def test_static_scales_of_activations_change_nothing(tmp_path: Path) -> None:
    plain = save(tmp_path, "nvfp4_packed")
    save(tmp_path, "nvfp4_packed", input_global_scale=torch.full((1,), 0.25))
    coded = matrix(tmp_path, "nvfp4_packed").decode(range(N))
    np.testing.assert_allclose(coded.dequantized(), wide(plain, "nvfp4_packed"), rtol=2**-23)
