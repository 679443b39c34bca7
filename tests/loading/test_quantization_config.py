"""config.json says which matrices are quantized, and what it says wrongly is one clear line."""

from typing import Any

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization import left_out, read_quantization

from tests.support.configured import configured, with_experts
from tests.support.published import LAYOUTS

AWQ, GPTQ, FP8 = (LAYOUTS[name].config for name in ("awq", "gptq", "fp8 blocks"))
W4A16, W8A8, AUTO_ROUND = (LAYOUTS[name].config for name in ("w4a16", "w8a8", "auto-round gptq"))
MXFP4, NVFP4, MXFP8 = (LAYOUTS[name].config for name in ("mxfp4", "nvfp4", "mxfp8"))
LAYER = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
LAYER += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def read(quantization: object, architecture: str = "LlamaForCausalLM") -> dict[str, Stored]:
    fields = Fields({"quantization_config": quantization}, "config.json")
    return read_quantization(fields, configured(architecture, num_hidden_layers=2, tie_word_embeddings=False))


def names(quantization: object, **more: Any) -> set[str]:
    """The quantized modules; of a layer with all of its matrices just the layer."""
    found = set(read(quantization, **more))
    for layer in range(2):
        matrices = {f"layers.{layer}.{name}" for name in LAYER}
        if matrices <= found:
            found = found - matrices | {f"layers.{layer}"}
    return found


def with_group(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    group = config["config_groups"]["group_0"]
    return config | {"config_groups": {"group_0": group | changes}}


def with_weights(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return with_group(config, weights=config["config_groups"]["group_0"]["weights"] | changes)


def test_a_checkpoint_without_the_field_is_not_quantized() -> None:
    assert read(None) == {}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_head_stays_as_it_is_unless_it_is_named(name: str) -> None:
    assert names(LAYOUTS[name].config) == {"layers.0", "layers.1"}


@pytest.mark.parametrize(
    "quantization",
    [GPTQ | {"lm_head": True}, AUTO_ROUND | {"extra_config": {"lm_head": {"bits": 4}}}, W4A16 | {"ignore": []}],
)
def test_a_head_may_be_quantized_too(quantization: dict[str, Any]) -> None:
    assert names(quantization) == {"layers.0", "layers.1", "lm_head"}


@pytest.mark.parametrize(
    "quantization",
    [
        AWQ | {"modules_to_not_convert": ["layers.0."]},
        FP8 | {"modules_to_not_convert": ["model.layers.0"]},
        FP8 | {"ignored_layers": [f"model.layers.0.{name}" for name in LAYER]},
        GPTQ | {"dynamic": {r"-:model\.layers\.0\..*": {}}},
        AUTO_ROUND | {"block_name_to_quantize": "model.layers.1"},
        AUTO_ROUND | {"extra_config": {f"model.layers.0.{name}": {"bits": 16} for name in LAYER}},
        W4A16 | {"ignore": ["lm_head", r"re:.*layers\.0\..*"]},
        W4A16 | {"ignore": ["lm_head", *(f"model.layers.0.{name}" for name in LAYER)]},
        with_group(W4A16, targets=[r"re:model\.layers\.1\..*_proj"]),
    ],
)
def test_modules_that_are_left_alone_are_not_quantized(quantization: dict[str, Any]) -> None:
    assert names(quantization) == {"layers.1"}


def test_a_name_counts_as_a_whole() -> None:
    assert names(FP8 | {"modules_to_not_convert": ["model.layers.1", "proj", "yers.0"]}) == {"layers.0"}


EXPERTS = [f"mlp.experts.{index}.{part}" for index in range(4) for part in ("gate_proj", "up_proj", "down_proj")]
SHARED = [f"mlp.shared_expert.{part}" for part in ("gate_proj", "up_proj", "down_proj")]


def read_moe(quantization: object) -> dict[str, Stored]:
    """Of a model whose second layer has four experts and a shared one."""
    model = with_experts(count=4, top_k=2, width=128, shared=256, num_hidden_layers=2)
    return read_quantization(Fields({"quantization_config": quantization}, "config.json"), model)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_expert_is_quantized_and_no_router(name: str) -> None:
    dense = {f"layers.0.{each}" for each in LAYER}
    experts = {f"layers.1.{each}" for each in [*LAYER[:4], *EXPERTS, *SHARED]}
    assert set(read_moe(LAYOUTS[name].config)) == dense | experts


@pytest.mark.parametrize(
    ("quantization", "skipped"),
    [
        (FP8 | {"modules_to_not_convert": ["model.layers.1.mlp.gate", "lm_head"]}, []),
        (FP8 | {"modules_to_not_convert": ["model.layers.1.mlp.experts.2"]}, EXPERTS[6:9]),
        (FP8 | {"modules_to_not_convert": ["model.layers.1.mlp.experts"]}, EXPERTS),
        (AWQ | {"modules_to_not_convert": ["shared_expert"]}, SHARED),
        (GPTQ | {"dynamic": {r"-:.*shared_expert\..*": {}}}, SHARED),
        (W4A16 | {"ignore": ["lm_head", "model.layers.1.mlp.gate", r"re:.*mlp\.shared_expert_gate$"]}, []),
        (W4A16 | {"ignore": [f"model.layers.1.{name}" for name in EXPERTS[:5]]}, EXPERTS[:5]),
        (W4A16 | {"ignore": [r"re:.*experts\.3\..*"]}, EXPERTS[9:]),
        (AUTO_ROUND | {"extra_config": {"model.layers.1.mlp.experts.1.up_proj": {"bits": 16}}}, [EXPERTS[4]]),
    ],
)
def test_single_experts_may_be_left_alone(quantization: dict[str, Any], skipped: list[str]) -> None:
    stored = read_moe(quantization)
    assert {name for name in [*EXPERTS, *SHARED] if f"layers.1.{name}" not in stored} == set(skipped)


def test_the_experts_of_mixtral_have_names_of_their_own() -> None:
    quantization = AWQ | {"modules_to_not_convert": ["gate"]}
    model = configured("MixtralForCausalLM", num_hidden_layers=2, num_local_experts=4)
    stored = read_quantization(Fields({"quantization_config": quantization}, "config.json"), model)
    experts = [f"layers.1.block_sparse_moe.experts.{index}.{part}" for index in range(4) for part in ("w1", "w2", "w3")]
    assert {name for name in stored if name.startswith("layers.1.") and "self_attn" not in name} == set(experts)


def test_the_modules_of_a_block_may_be_listed() -> None:
    listed = GPTQ | {"modules_in_block_to_quantize": [["self_attn.k_proj", "self_attn.v_proj"], ["mlp.up_proj"]]}
    assert {name.rpartition(".")[2] for name in read(listed)} == {"k_proj", "v_proj", "up_proj"}


def test_single_modules_may_have_other_settings() -> None:
    stored = read(GPTQ | {"dynamic": {r"+:.*down_proj": {"bits": 8, "group_size": 32}}})
    assert (stored["layers.0.mlp.down_proj"].bits, stored["layers.0.mlp.down_proj"].group) == (8, 32)
    assert stored["layers.0.mlp.up_proj"].bits == 4
    stored = read(AUTO_ROUND | {"extra_config": {"model.layers.1.mlp.up_proj": {"bits": 8}}})
    assert [stored[f"layers.{layer}.mlp.up_proj"].native for layer in range(2)] == ["int4", "int8_group"]


def test_a_pattern_counts_before_a_class() -> None:
    groups = W4A16["config_groups"] | {
        "group_1": W8A8["config_groups"]["group_0"] | {"targets": [r"re:.*mlp.*"], "format": "int-quantized"}
    }
    stored = read(W4A16 | {"format": "mixed-precision", "config_groups": _with_format(groups)})
    assert stored["layers.0.mlp.up_proj"].native == "int8"
    assert stored["layers.0.self_attn.q_proj"].native == "int4"


@pytest.mark.parametrize("bits", [4, 8])
def test_what_asks_for_activations_of_few_bits_is_kept_as_what_does_not(bits: int) -> None:
    activations = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True}
    assert read(with_group(MXFP4, input_activations=activations)) == read(MXFP4)


def _with_format(groups: dict[str, Any]) -> dict[str, Any]:
    return groups | {"group_0": groups["group_0"] | {"format": "pack-quantized"}}


def test_the_field_of_a_multimodal_model_is_found_and_so_are_its_names() -> None:
    nested = {"text_config": {"quantization_config": FP8}}
    fields = Fields(nested, "config.json")
    assert read_quantization(fields, configured(num_hidden_layers=1))
    skip = FP8 | {"modules_to_not_convert": ["model.language_model.layers.0"]}
    assert names(skip, architecture="Gemma3ForCausalLM") == {"layers.1"}


@pytest.mark.parametrize(
    ("bits", "group", "reordered", "native", "kept"),
    [(4, 128, True, "int8_group", 32), (4, -1, True, "int4", 0), (4, 64, False, "int4", 64), (8, 64, False, None, 64)],
)
def test_act_order_is_kept_in_groups_of_32(
    bits: int, group: int, reordered: bool, native: str | None, kept: int
) -> None:
    stored = read(GPTQ | {"bits": bits, "group_size": group, "desc_act": reordered})["layers.0.mlp.up_proj"]
    assert (stored.native, stored.group) == (native or "int8_group", kept)


def test_groups_that_were_fixed_beforehand_are_in_order() -> None:
    stored = read(GPTQ | {"desc_act": True, "static_groups": True})["layers.0.mlp.up_proj"]
    assert not stored.reordered


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ([], "quantization_config must be an object"),
        ({}, "quant_method is missing"),
        ({"quant_method": "bitsandbytes"}, "supported values: gptq, awq, auto-round"),
        (GPTQ | {"bits": 5}, "bits=5 is not supported; supported values: 2, 3, 4, 8"),
        (GPTQ | {"bits": "4"}, "bits must be an integer"),
        (GPTQ | {"bits": {"a": ["b" * 99]}}, "bits must be an integer from 1 to 64, not an object"),
        (GPTQ | {"group_size": 48}, "group_size=48 is not supported; supported values: 16, multiples of 32"),
        (GPTQ | {"group_size": 0}, "group_size=0"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format='marlin' is not supported"),
        (GPTQ | {"dynamic": {"+:(a+)+b": {"bits": 8}}}, "too complex to match safely"),
        (GPTQ | {"dynamic": {"+:[": {"bits": 8}}}, "is not a regular expression"),
        (GPTQ | {"dynamic": {"+:a": 8}}, "must be an object"),
        (GPTQ | {"modules_in_block_to_quantize": [7]}, "must hold module names"),
        (AWQ | {"version": "gemv"}, "version='gemv' is not supported; the supported version is gemm"),
        (AWQ | {"bits": 8}, "bits=8 is not supported; supported values: 4"),
        (AWQ | {"modules_to_not_convert": "lm_head"}, "must be a list of module names"),
        (AUTO_ROUND | {"packing_format": "auto_round:fp8"}, "packing_format='auto_round:fp8' is not supported"),
        (
            AUTO_ROUND | {"packing_format": "auto_round:auto_awq", "bits": 3},
            "bits=3 is not supported; supported values: 4",
        ),
        (AUTO_ROUND | {"act_bits": 8}, "act_bits=8 is not supported"),
        (AUTO_ROUND | {"data_type": "mx_fp"}, "data_type='mx_fp' is not supported"),
        (FP8 | {"fmt": "e5m2"}, "fmt='e5m2' is not supported"),
        (FP8 | {"weight_block_size": [128, 100]}, "weight_block_size=[128, 100] is not supported"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size must be a list of 2 numbers"),
        (W4A16 | {"config_groups": {}}, "config_groups is missing"),
        (W4A16 | {"format": "marlin-24"}, "format='marlin-24' is not supported"),
        (W4A16 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "format='sparse-24-bitmask' is not supported"),
        (W4A16 | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config is not supported"),
        (W4A16 | {"ignore": ["re:" + "a" * 300]}, "too complex to match safely"),
        (W4A16 | {"ignore": ["re:.*.*.*.*.*x"]}, "too complex to match safely"),
        (with_group(W4A16, targets=[]), "targets is missing"),
        (with_weights(W4A16, num_bits=2), "num_bits=2 is not supported"),
        (with_weights(W4A16, type="float"), "num_bits=4 is not supported; supported values: 8"),
        (with_weights(MXFP4, group_size=16), "group_size=16 is not supported"),
        (with_weights(MXFP4, num_bits=8), "num_bits=8 is not supported; supported values: 4"),
        (with_weights(MXFP4, type="int"), "type='int' is not supported"),
        (with_weights(MXFP8, group_size=128), "group_size=128 is not supported"),
        (with_weights(MXFP8, num_bits=4), "num_bits=4 is not supported; supported values: 8"),
        (with_weights(NVFP4, group_size=32), "group_size=32 is not supported"),
        (with_weights(NVFP4, strategy="group"), "strategy='group' is not supported"),
        (with_weights(NVFP4, num_bits=8), "num_bits=8 is not supported; supported values: 4"),
        (with_weights(W8A8, strategy="block"), "strategy='block' is not supported"),
        (with_group(W8A8, input_activations={"num_bits": 4, "dynamic": True}), "num_bits=4 is not supported"),
        (with_group(W8A8, output_activations={"num_bits": 8}), "output_activations"),
    ],
)
def test_what_is_not_supported_is_one_clear_line(quantization: object, message: str) -> None:
    with pytest.raises(OperatorError) as error:
        read(quantization)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        (FP8, []),
        (FP8 | {"activation_scheme": "static"}, ["static activation scales are not used"]),
        (
            with_group(W8A8, input_activations={"num_bits": 8, "dynamic": False}),
            ["static activation scales are not used"],
        ),
        (NVFP4, ["static activation scales are not used"]),
        (W4A16 | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, ["--kv-cache-dtype"]),
        (
            with_group(W8A8, input_activations={"num_bits": 8, "dynamic": False}) | {"kv_cache_scheme": {"a": 1}},
            ["static activation scales are not used", "--kv-cache-dtype"],
        ),
    ],
)
def test_what_is_left_out_of_a_quantization_is_told(quantization: dict[str, Any], words: list[str]) -> None:
    notes = left_out(Fields({"quantization_config": quantization}, "config.json"))
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))
