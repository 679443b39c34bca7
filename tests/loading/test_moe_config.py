"""The experts that a config.json describes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.query_key_norms import HeadNorms, NoNorms
from numaserve.workers.models.load import load_model_config
from test_model_config import LLAMA, write

from tests.support import checkpoints
from tests.support.families.table import EXPERTS, FAMILIES
from tests.support.models import layers_with_experts, the_only, windows

MIXTRAL: dict[str, Any] = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "num_key_value_heads": 3,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN: dict[str, Any] = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_key_value_heads": 3,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 64,
}
QWEN2 = QWEN | {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 96}

_MLPS = {
    "granitemoehybrid": "block_sparse_moe",
    "lfm2_moe": "feed_forward",
    "llama4_text": "feed_forward",
    "nemotron_h": "mixer",
}
_SHARED = {"glm4_moe": 72, "granite4-h-moe": 88, "kimi_linear": 72, "llama4": 72, "nemotron_h": 88}


def expected_layers(config: hf.PreTrainedConfig) -> tuple[int, ...]:
    """Of the model that transformers makes."""
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(config)
    mlp = _MLPS.get(config.model_type, "mlp")
    return tuple(index for index, layer in enumerate(model.model.layers) if hasattr(getattr(layer, mlp), "experts"))


@pytest.mark.parametrize("case", sorted({*EXPERTS} - {"gemma4-experts"}))  # those lie next to an MLP
def test_experts_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    expected = FAMILIES[case].config()
    expected.architectures = [checkpoints.architecture(expected)]
    expected.save_pretrained(tmp_path)
    config = load_model_config(tmp_path)
    experts = the_only(config, Experts)
    routing, is_llama4 = experts.routing, case == "llama4"
    assert layers_with_experts(config) == expected_layers(expected)
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    count = next(getattr(expected, key) for key in keys if hasattr(expected, key))
    assert (routing.num_experts, routing.top_k) == (count, expected.num_experts_per_tok)
    assert experts.intermediate == getattr(expected, "moe_intermediate_size", expected.intermediate_size)
    assert routing.renormalize == getattr(expected, "norm_topk_prob", not is_llama4)
    assert routing.weighs_input == is_llama4
    assert experts.shared == _SHARED.get(case, getattr(expected, "shared_expert_intermediate_size", 0))
    assert routing.shared_gate == hasattr(expected, "shared_expert_intermediate_size")
    has_correction = case in {"glm4_moe", "kimi_linear", "lfm2_moe", "mimo_v2_flash", "minimax_m2", "nemotron_h"}
    assert experts.correction_bias == has_correction
    assert routing.scoring == ("sigmoid" if has_correction or is_llama4 else "softmax")
    assert routing.scale == getattr(expected, "routed_scaling_factor", 1.0)
    assert routing.num_groups == getattr(expected, "n_group", 1)


@pytest.mark.parametrize("is_normed", [False, True])
def test_glm_rotates_half_of_each_head_and_skips_what_predicts_several_tokens(is_normed: bool, tmp_path: Path) -> None:
    values = {key: MIXTRAL[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")}
    values |= {"architectures": ["Glm4MoeForCausalLM"], "num_hidden_layers": 3, "max_position_embeddings": 512}
    values |= {"num_nextn_predict_layers": 1, "head_dim": 64, "use_qk_norm": is_normed, "num_key_value_heads": 1}
    config = load_model_config(write(tmp_path, **values))
    attention = the_only(config, Attention)
    assert (attention.rotation.rope.rotary_dim, attention.biases) == (32, "none")
    assert isinstance(attention.norms, HeadNorms if is_normed else NoNorms)
    assert layers_with_experts(config) == (1, 2)
    assert (config.num_layers, config.skipped_layers) == (3, 1)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (0, 1, 2, 3, 4, 5)),
        ({"decoder_sparse_step": 2}, (1, 3, 5)),
        ({"mlp_only_layers": [0, 3]}, (1, 2, 4, 5)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, (5,)),
    ],
)
@pytest.mark.parametrize("values", [QWEN, QWEN2])
def test_the_other_layers_are_dense(
    values: dict[str, Any], changes: dict[str, object], layers: tuple[int, ...], tmp_path: Path
) -> None:
    config = load_model_config(write(tmp_path, **values | changes | {"num_hidden_layers": 6}))
    assert config.num_layers == 6
    assert layers_with_experts(config) == layers


def test_the_number_of_experts_has_two_names(tmp_path: Path) -> None:
    values = {key: value for key, value in QWEN.items() if key != "num_experts"}
    config = load_model_config(write(tmp_path, **values, num_local_experts=12))
    assert the_only(config, Experts).routing.num_experts == 12


@pytest.mark.parametrize(
    ("values", "config_class"), [(QWEN, hf.Qwen3MoeConfig), (QWEN2, hf.Qwen2MoeConfig), (MIXTRAL, hf.MixtralConfig)]
)
def test_windows_are_on_the_layers_that_have_one_in_transformers(
    values: dict[str, Any], config_class: type[hf.PreTrainedConfig], tmp_path: Path
) -> None:
    values = values | {"num_hidden_layers": 6, "use_sliding_window": True, "max_window_layers": 4}
    values = values | {"sliding_window": 100}
    expected = config_class(**{key: value for key, value in values.items() if key != "architectures"}, pad_token_id=0)
    config = load_model_config(write(tmp_path, **values))
    kinds = getattr(expected, "layer_types", None) or ["sliding_attention"] * 6
    assert windows(config) == [100 if kind[0] == "s" else None for kind in kinds]
