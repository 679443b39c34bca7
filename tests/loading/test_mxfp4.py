"""Experts in MXFP4: what config.json says of them, and that every rank packs exactly what is in the file, in 4 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import WeightFormats
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.quantized.layouts import QuantizedMatrix
from numaserve.workers.weights.safetensors_source import SafetensorsSource
from numaserve.workers.weights.tensors import check_tensors
from safetensors.torch import load_file, save_file
from test_loader import edit_tensors
from test_moe_loading import PackedExperts, experts_of, half_of, load

from tests.support.published_checkpoints import edit_config
from tests.support.published_mxfp4 import CONFIG, save_mxfp4, small_gpt_oss
from tests.support.published_writers import mxfp4

STORED = Stored("gpt_oss", "mxfp4", 32, bits=4)
EXPERTS = "model.layers.0.mlp.experts."


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_mxfp4(small_gpt_oss(), tmp_path)


def load_experts(path: Path, team: Team, **options: Any) -> PackedExperts:
    return experts_of(load(path, team, **options))


def test_only_experts_are_quantized(saved: Path) -> None:
    stored = load_model_config(saved).stored
    parts = {f"layers.{layer}.mlp.experts.{e}.{part}" for layer in range(2) for e in range(5) for part in PARTS}
    assert stored == dict.fromkeys(parts, STORED)


PARTS = ("gate_up_proj", "down_proj")


@pytest.mark.parametrize("skipped", ["model.layers.0.mlp", "model.layers.0.mlp.experts", r"model.layers.0\..*"])
def test_modules_that_the_configuration_names_are_left_alone(saved: Path, skipped: str) -> None:
    edit_config(saved, quantization_config=CONFIG | {"modules_to_not_convert": [skipped, "model.layers.1.mlp.exp"]})
    assert {name.split(".")[1] for name in load_model_config(saved).stored} == {"1"}


def test_a_pattern_that_could_run_for_ever_is_refused(saved: Path) -> None:
    edit_config(saved, quantization_config=CONFIG | {"modules_to_not_convert": ["(a+)+b"]})
    with pytest.raises(OperatorError, match="is too complex to match safely"):
        load_model_config(saved)


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_the_ranks_together_hold_what_is_in_the_file(saved: Path, tp: int, team: Team) -> None:
    model = small_gpt_oss()
    experts = model.model.layers[0].mlp.experts
    group = [load(saved, team, tp=tp, rank=rank) for rank in range(tp)]
    parts = [experts_of(loaded) for loaded in group]
    for index in range(5):
        gate_up, down = (mxfp4(getattr(experts, name).data[index].T.numpy()).values for name in PARTS)
        np.testing.assert_array_equal(joined([part.down[index] for part in parts], axis=1), down)
        for half in range(2):
            rows = [half_of(part.gate_up[index], half)[: part.down[index].k] for part in parts]
            np.testing.assert_array_equal(np.concatenate(rows), gate_up[half::2])
    assert {matrix.format for part in parts for matrix in part.all} == {"mxfp4"}
    biased = [loaded.vector(part.layer.down_bias) is not None for loaded, part in zip(group, parts, strict=True)]
    assert biased == [rank == 0 for rank in range(tp)]


def joined(matrices: list[PackedMatrix], axis: int) -> np.ndarray:
    return np.concatenate([matrix.to_numpy() for matrix in matrices], axis=axis)


def test_a_weight_takes_four_bits_and_its_share_of_a_scale(saved: Path, team: Team) -> None:
    (gate_up, *_) = load_experts(saved, team).gate_up
    assert gate_up.nbytes == gate_up.n * gate_up.k * (16 + 1) // 32


def test_they_can_be_expanded_but_not_rounded_to_something_else(saved: Path, team: Team) -> None:
    packed, expanded = (load_experts(saved, team, formats=WeightFormats(each)) for each in (None, "bf16"))
    assert {matrix.format for matrix in (expanded.router, *expanded.all)} == {"bf16"}
    np.testing.assert_array_equal(packed.down[3].to_numpy(), expanded.down[3].to_numpy())
    with pytest.raises(OperatorError, match="already quantized to mxfp4 and cannot be quantized to int8"):
        load_experts(saved, team, formats=WeightFormats("int8"))


def test_rows_decode_one_by_one_and_some_apart(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(12, 70)).astype(np.float32)
    written = mxfp4(values)
    save_file({f"m.{suffix}": each for suffix, each in written.tensors.items()}, tmp_path / "model.safetensors")
    matrix = QuantizedMatrix(SafetensorsSource(SafetensorsFiles(tmp_path)), "m", STORED, (12, 70))
    for rows in (range(12), range(3, 5), range(1, 12, 2)):
        expected = written.values[rows.start : rows.stop : rows.step]
        np.testing.assert_array_equal(matrix.decode(rows).dequantized(), expected)


def test_a_scale_that_is_not_a_number_is_refused(saved: Path, team: Team) -> None:
    name = f"{EXPERTS}down_proj_scales"
    scales = load_file(saved / "model.safetensors")[name]
    scales[4, 7, 1] = 255
    edit_tensors(saved, lambda tensors: tensors | {name: scales})
    with pytest.raises(OperatorError, match=f"tensor {name} holds scales that are not finite"):
        load(saved, team)


@pytest.mark.parametrize(
    ("part", "shape", "message"),
    [
        ("gate_up_proj_blocks", (4, 320, 3, 16), "the configuration asks for 5 experts"),
        ("gate_up_proj_blocks", (5, 320, 3, 8), r"the configuration asks for u8 of shape \[320, 3, 16\]"),
        ("down_proj_scales", (5, 96, 4), r"the configuration asks for u8 of shape \[96, 5\]"),
    ],
)
def test_a_tensor_of_another_shape_is_refused(
    saved: Path, part: str, shape: tuple[int, ...], message: str, team: Team
) -> None:
    edit_tensors(saved, lambda tensors: tensors | {EXPERTS + part: torch.zeros(shape, dtype=torch.uint8)})
    with pytest.raises(OperatorError, match=message):
        load(saved, team)


def test_a_missing_tensor_is_named_as_of_an_expert(saved: Path) -> None:
    tensors = load_file(saved / "model.safetensors")
    del tensors[f"{EXPERTS}down_proj_scales"]
    save_file(tensors, saved / "model.safetensors")
    config = load_model_config(saved)
    source = open_source(open_model(saved), config)
    assert f"{EXPERTS}3.down_proj.blocks" in source.names()
    with pytest.raises(OperatorError, match=r"the checkpoint lacks .*experts\.0\.down_proj\.scales"):
        check_tensors(source, config)
