"""Multi-head latent attention and the experts beside it, as a config.json describes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.config.load import load_model_config
from numaserve.workers.protocol import PAGE_SIZE
from numaserve.workers.settings import ModelSettings
from numaserve.workers.weights.sharding import kv_bytes_per_page
from test_model_config import write

from tests.support import checkpoints

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


@pytest.mark.parametrize("case", checkpoints.LATENT_CASES)
def test_attention_and_experts_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    expected = checkpoints.LATENT_CASES[case]()
    expected.architectures = [hf.AutoModelForCausalLM._model_mapping[type(expected)].__name__]
    expected.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(expected).model
    config = load_model_config(tmp_path)
    mla, moe = config.mla, config.moe
    assert mla is not None
    assert moe is not None
    assert (mla.q_lora_rank, mla.kv_lora_rank) == (expected.q_lora_rank, expected.kv_lora_rank)
    assert (mla.nope_dim, mla.rope_dim) == (expected.qk_nope_head_dim, expected.qk_rope_head_dim)
    assert (config.head_dim, config.num_kv_heads) == (expected.v_head_dim, 1)
    assert config.query_scale == pytest.approx(model.layers[0].self_attn.scaling, rel=1e-12)
    assert mla.norm_eps == model.layers[0].self_attn.kv_a_layernorm.variance_epsilon
    with_experts = [index for index, layer in enumerate(model.layers) if hasattr(layer.mlp, "experts")]
    assert config.moe_layers == tuple(with_experts)
    assert (moe.num_experts, moe.top_k) == (expected.n_routed_experts, expected.num_experts_per_tok)
    assert moe.shared_intermediate_size == expected.n_shared_experts * expected.moe_intermediate_size
    assert (moe.scale, moe.num_groups, moe.top_groups) == (
        expected.routed_scaling_factor,
        expected.n_group,
        expected.topk_group,
    )
    assert (moe.scoring, moe.correction_bias, moe.renormalize, moe.group_score) == (
        ("sigmoid", True, True, "top2") if case == "deepseek_v3" else ("softmax", False, False, "max")
    )


def test_the_published_r1_is_read(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **DEEPSEEK_R1))
    assert config.mla is not None
    assert config.mla.cache_dim == 576
    assert config.query_scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert config.moe_layers == tuple(range(3, 61))
    assert config.mtp_layers == 1
    assert kv_bytes_per_page(config, [1] * 6, 5) == 61 * PAGE_SIZE * 576 * 2


def test_greedy_experts_have_no_groups(tmp_path: Path) -> None:
    values = DEEPSEEK_R1 | {"architectures": ["DeepseekV2ForCausalLM"], "scoring_func": "softmax"}
    values |= {"topk_method": "greedy", "norm_topk_prob": False, "n_group": 1, "q_lora_rank": None}
    config = load_model_config(write(tmp_path, **values))
    assert config.moe is not None
    assert config.mla is not None
    assert (config.moe.num_groups, config.mla.q_lora_rank) == (1, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kv_lora_rank": 500}, "kv_lora_rank=500 is not supported"),
        ({"kv_lora_rank": 1024}, "kv_lora_rank must be an integer from 1 to 512"),
        ({"qk_rope_head_dim": 96}, "608 together; at most 576"),
        ({"qk_nope_head_dim": 100}, "qk_nope_head_dim=100"),
        ({"v_head_dim": 80}, "v_head_dim=80"),
        ({"num_key_value_heads": 64}, "num_key_value_heads=64"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq=2"),
        ({"n_group": 7}, "256 experts cannot be divided into n_group=7"),
        ({"topk_group": 9}, "topk_group must be an integer from 1 to 8"),
        ({"n_group": 256, "topk_group": 4}, "have fewer experts than a token goes to"),
    ],
)
def test_what_the_kernels_do_not_take_is_one_clear_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=message) as error:
        load_model_config(write(tmp_path, **(DEEPSEEK_R1 | values)))
    assert "\n" not in str(error.value)


def test_latents_are_cached_in_bf16_only(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **DEEPSEEK_R1))
    with pytest.raises(OperatorError, match="--kv-cache-dtype int8: DeepseekV3ForCausalLM caches latents, in bf16"):
        kv_bytes_per_page(config, [1], 0, ModelSettings(kv_cache_dtype="int8"))
