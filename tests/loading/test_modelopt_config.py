"""ModelOpt's configurations, in config.json or in a file of their own, say which matrices are quantized, and how."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization import left_out, read_quantization, with_quantization_file

from tests.support.configured import configured, with_experts
from tests.support.published import LAYOUTS

FP8 = LAYOUTS["modelopt fp8"].config
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
TENSOR, BLOCKS = Stored("fp8", "fp8"), Stored("fp8", "fp8", 128, block_rows=128)


def read(quantization: dict[str, Any]) -> dict[str, Stored]:
    """Return the formats in a model of two layers; the second one has four experts and a shared expert."""
    model = with_experts(count=4, top_k=2, width=128, shared=256, num_hidden_layers=2)
    return read_quantization(Fields({"quantization_config": quantization}, "config.json"), model)


def of_layers(stored: dict[str, Stored]) -> set[str]:
    return {name.split(".")[1] for name in stored if name.startswith("layers.")}


@pytest.mark.parametrize(
    ("ignored", "left"),
    [
        (["lm_head", "model.layers.0.*"], {"1"}),
        (["lm_head", "model.layers.0*", "model.layers.1*"], set()),
        (["model.layers.0"], {"1"}),
        (["model.layers.?.*"], set()),
        (["*.layers.1.*", "model.layers.[2-9].*"], {"0"}),
        (["model.layers", "lm_head"], set()),
        ([], {"0", "1"}),
    ],
)
def test_wildcards_and_names_leave_modules_alone(ignored: list[str], left: set[str]) -> None:
    assert of_layers(read(FP8 | {"ignore": ignored})) == left


def test_single_experts_and_the_head_may_be_left_alone() -> None:
    stored = read(FP8 | {"ignore": ["model.layers.1.mlp.experts.2.*", "*.shared_expert.*_proj"]})
    assert "layers.1.mlp.experts.1.up_proj" in stored
    assert not any(".experts.2." in name or ".shared_expert." in name for name in stored)


def test_formats_may_differ_by_module() -> None:
    layers = {
        "model.layers.0.self_attn": {"quant_algo": "FP8"},
        "model.layers.1.mlp.experts": {"quant_algo": "FP8_PB_WO"},
        "model.layers.1.mlp.experts.2": {"quant_algo": "NVFP4", "group_size": 16},
        "model.layers.1.mlp.experts.3.up_proj": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
    }
    stored = read(MIXED | {"quantized_layers": layers, "ignore": ["*.experts.0.*"]})
    assert {name.split(".")[2] for name in stored if name.startswith("layers.0.")} == {"self_attn"}
    assert {stored[f"layers.0.self_attn.{each}_proj"] for each in "qkvo"} == {TENSOR}
    assert stored["layers.1.mlp.experts.3.up_proj"] == TENSOR
    assert stored["layers.1.mlp.experts.3.down_proj"] == BLOCKS
    assert stored["layers.1.mlp.experts.2.down_proj"].native == "nvfp4"
    assert not any(".experts.0." in name for name in stored)


def own_file(folder: Path, content: object) -> Fields:
    (folder / "hf_quant_config.json").write_text(json.dumps(content))
    return with_quantization_file(Fields({}, "config.json"), folder)


def test_a_file_of_its_own_counts_where_config_json_says_nothing(tmp_path: Path) -> None:
    settings = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "model.layers.0*"]}
    fields = own_file(tmp_path, {"producer": {"name": "modelopt"}, "quantization": settings})
    model = configured(num_hidden_layers=2, tie_word_embeddings=False)
    assert of_layers(read_quantization(fields, model)) == {"1"}
    assert len(left_out(fields)) == 2
    given = Fields({"quantization_config": LAYOUTS["awq"].config}, "config.json")
    assert with_quantization_file(given, tmp_path).values == given.values


def test_a_folder_without_such_a_file_is_not_quantized(tmp_path: Path) -> None:
    assert with_quantization_file(Fields({}, "config.json"), tmp_path).values == {}


def test_an_error_in_that_file_names_it(tmp_path: Path) -> None:
    fields = own_file(tmp_path, {"quantization": {"quant_algo": "W4A8_AWQ"}})
    with pytest.raises(OperatorError, match="hf_quant_config: quantization: quant_algo='W4A8_AWQ' is not supported"):
        read_quantization(fields, configured())


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_algo": "W4A16_AWQ"}, "supported values: FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8, NVFP4"),
        ({"quant_algo": "NVFP4", "group_size": 32}, "group_size=32 is not supported"),
        ({"quant_algo": None}, "quant_algo='NONE' is not supported"),
        ({"quant_algo": 8}, "quant_algo must be a string"),
        (MIXED, "quantized_layers is missing"),
        (MIXED | {"quantized_layers": {"a": {"quant_algo": "INT4"}}}, "quantized_layers: a: quant_algo='INT4' is not"),
        (MIXED | {"quantized_layers": {"a": "FP8"}}, "a must be an object"),
        ({"ignore": "lm_head"}, "ignore must be a list of module names"),
        ({"ignore": ["*a*b*c*d*e"]}, "too complex to match safely"),
    ],
)
def test_what_modelopt_has_and_we_do_not_is_one_clear_line(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError) as error:
        read(FP8 | quantization)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("quantization", "notes"),
    [
        ({"quant_algo": "FP8"}, 1),
        ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, 0),
        ({"quant_algo": "FP8_PB_WO", "kv_cache_quant_algo": "FP8"}, 1),
        ({"quant_algo": "fp8", "kv_cache_scheme": {"num_bits": 8}}, 2),
        (MIXED | {"quantized_layers": {"a": {"quant_algo": "FP8"}}}, 1),
        ({"quant_algo": "NVFP4"}, 1),
        ({"quant_algo": "W4A16_NVFP4"}, 0),
    ],
)
def test_fixed_scales_that_are_left_out_are_told(quantization: dict[str, Any], notes: int) -> None:
    assert len(left_out(Fields({"quantization_config": quantization}, "config.json"))) == notes
