"""Multi-head latent attention and the experts beside it, as a config.json describes them."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.models.load import load_model_config
from test_model_config import write

from tests.support import checkpoints
from tests.support.models import layers_with_experts, the_only

# As published, without what has no meaning here.
DEEPSEEK_R1: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "eos_token_id": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}

GLM_FLASH: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "attention_bias": False,
    "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 20,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 47,
    "num_key_value_heads": 20,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 1.0,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.8,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 256,
    "vocab_size": 154880,
}


@pytest.mark.parametrize("case", checkpoints.LATENT_CASES)
def test_attention_and_experts_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    expected = checkpoints.LATENT_CASES[case]()
    expected.architectures = [hf.AutoModelForCausalLM._model_mapping[type(expected)].__name__]
    expected.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(expected).model
    config = load_model_config(tmp_path)
    latent, experts = the_only(config, LatentAttention), the_only(config, Experts)
    routing = experts.routing
    assert (latent.q_rank, latent.kv_rank) == (expected.q_lora_rank, expected.kv_lora_rank)
    assert (latent.nope_dim, latent.rope_dim) == (expected.qk_nope_head_dim, expected.qk_rope_head_dim)
    assert (latent.value_dim, latent.keys.count) == (expected.v_head_dim, 1)
    assert latent.scale == pytest.approx(model.layers[0].self_attn.scaling, rel=1e-12)
    assert latent.eps == model.layers[0].self_attn.kv_a_layernorm.variance_epsilon
    with_experts = [index for index, layer in enumerate(model.layers) if hasattr(layer.mlp, "experts")]
    assert layers_with_experts(config) == tuple(with_experts)
    assert (routing.num_experts, routing.top_k) == (expected.n_routed_experts, expected.num_experts_per_tok)
    assert experts.shared == expected.n_shared_experts * expected.moe_intermediate_size
    assert (routing.scale, routing.num_groups, routing.top_groups) == (
        expected.routed_scaling_factor,
        expected.n_group,
        expected.topk_group,
    )
    assert (routing.scoring, experts.correction_bias, routing.renormalize, routing.group_score) == (
        ("softmax", False, False, "max") if case == "deepseek_v2" else ("sigmoid", True, True, "top2")
    )


def test_the_published_r1_is_read(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **DEEPSEEK_R1))
    latent = the_only(config, LatentAttention)
    assert latent.cache_dim == 576
    assert latent.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert (config.num_layers, layers_with_experts(config)) == (61, tuple(range(3, 61)))
    assert config.skipped_layers == 1
    part = config.partition([1] * 6).ranks[5]
    assert config.decoder.page_bytes(part, "bf16") == 61 * PAGE_SIZE * 576 * 2


def test_the_published_glm_is_read(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **GLM_FLASH))
    latent, experts = the_only(config, LatentAttention), the_only(config, Experts)
    assert (latent.cache_dim, latent.query_dim, latent.value_dim, latent.scale) == (576, 256, 256, 256**-0.5)
    assert (latent.rope.rotary_dim, latent.rope.theta) == (64, 1e6)
    assert (config.num_layers, layers_with_experts(config)) == (47, tuple(range(1, 47)))
    assert (config.skipped_layers, config.eos_token_ids) == (1, (154820, 154827, 154829))
    assert (experts.routing.num_experts, experts.routing.top_k, experts.routing.scale) == (64, 4, 1.8)
    assert config.decoder.norm.eps == 1e-5


@pytest.mark.parametrize("dense", [0, 2, 47])
def test_kinds_of_layers_say_which_are_dense(dense: int, tmp_path: Path) -> None:
    kinds = ["dense"] * dense + ["sparse"] * (47 - dense)
    config = load_model_config(write(tmp_path, **GLM_FLASH, mlp_layer_types=kinds))
    assert layers_with_experts(config) == tuple(range(dense, 47))


@pytest.mark.parametrize("kinds", [["sparse"] * 46 + ["dense"], ["dense"] * 46 + ["other"], ["dense"] * 46])
def test_kinds_of_layers_in_another_order_are_one_clear_line(kinds: list[str], tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"mlp_layer_types must (name|be)"):
        load_model_config(write(tmp_path, **GLM_FLASH, mlp_layer_types=kinds))


def test_greedy_experts_have_no_groups(tmp_path: Path) -> None:
    values = DEEPSEEK_R1 | {"architectures": ["DeepseekV2ForCausalLM"], "scoring_func": "softmax"}
    values |= {"topk_method": "greedy", "norm_topk_prob": False, "n_group": 1, "q_lora_rank": None}
    config = load_model_config(write(tmp_path, **values))
    assert the_only(config, Experts).routing.num_groups == 1
    assert the_only(config, LatentAttention).q_rank is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kv_lora_rank": 500}, r"kv_lora_rank=500 .* multiples of 32\. No option .* use a model .*docs/models\.md"),
        ({"kv_lora_rank": 1024}, "kv_lora_rank must be an integer from 1 to 512"),
        ({"qk_rope_head_dim": 96}, "qk_rope_head_dim is 608; it must be at most 576"),
        ({"qk_nope_head_dim": 100}, "qk_nope_head_dim=100 is not supported; the sizes of latent attention must be"),
        ({"v_head_dim": 80}, "v_head_dim=80"),
        ({"num_key_value_heads": 64}, "num_key_value_heads=64"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq=2"),
        ({"n_group": 7}, "n_group=7 does not divide the 256 experts evenly"),
        ({"topk_group": 9}, "topk_group must be an integer from 1 to 8"),
        ({"n_group": 256, "topk_group": 4}, "experts, but num_experts_per_tok="),
    ],
)
def test_what_the_kernels_do_not_take_is_one_clear_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=message) as error:
        load_model_config(write(tmp_path, **(DEEPSEEK_R1 | values)))
    assert "\n" not in str(error.value)


def test_the_documentation_names_the_sizes_that_are_limited(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    limits = page.partition("The sizes of latent attention must be multiples of 32: ")[2].partition(".")[0]
    named = re.findall(r"`(\w+)`", limits)
    assert named == ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]
    for key in named:
        with pytest.raises(OperatorError, match=f"{key}=48 is not supported"):
            load_model_config(write(tmp_path, **(DEEPSEEK_R1 | {key: 48})))
    others = {"q_lora_rank": 45, "num_attention_heads": 7, "num_key_value_heads": 7}
    latent = the_only(load_model_config(write(tmp_path, **(DEEPSEEK_R1 | others))), LatentAttention)
    assert (latent.q_rank, latent.heads) == (45, 7)


def test_latents_are_cached_in_bf16_only(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **DEEPSEEK_R1))
    with pytest.raises(OperatorError, match="--kv-cache-dtype int8: this model caches latents, which must be bf16"):
        config.decoder.page_bytes(config.partition([1]).ranks[0], "int8")
