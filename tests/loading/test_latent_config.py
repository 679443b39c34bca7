"""Multi-head latent attention and the experts beside it, as a config.json describes them."""

import re
from pathlib import Path

import pytest
import torch
import transformers as hf
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.models.load import load_model_config
from published_decoders import GLM_FLASH
from test_model_config import write

from tests.support import checkpoints
from tests.support.families.table import FAMILIES, LATENTS
from tests.support.full_shapes import DEEPSEEK_R1
from tests.support.models import layers_with_experts, the_only


@pytest.mark.parametrize("case", LATENTS)
def test_attention_and_experts_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    expected = FAMILIES[case].config()
    expected.architectures = [checkpoints.architecture(expected)]
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


@pytest.mark.parametrize("dense", [0, 2, 47])
def test_kinds_of_layers_say_which_are_dense(dense: int, tmp_path: Path) -> None:
    kinds = ["dense"] * dense + ["sparse"] * (47 - dense)
    config = load_model_config(write(tmp_path, **GLM_FLASH, mlp_layer_types=kinds))
    assert layers_with_experts(config) == tuple(range(dense, 47))


def test_greedy_experts_have_no_groups(tmp_path: Path) -> None:
    values = DEEPSEEK_R1 | {"architectures": ["DeepseekV2ForCausalLM"], "scoring_func": "softmax"}
    values |= {"topk_method": "greedy", "norm_topk_prob": False, "n_group": 1, "q_lora_rank": None}
    config = load_model_config(write(tmp_path, **values))
    assert the_only(config, Experts).routing.num_groups == 1
    assert the_only(config, LatentAttention).q_rank is None


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
    part = config.partition([1] * 6).ranks[5]
    assert config.decoder.page_bytes(part, "bf16") == 61 * PAGE_SIZE * 576 * 2
    with pytest.raises(OperatorError, match="--kv-cache-dtype int8: this model caches latents, which must be bf16"):
        config.decoder.page_bytes(config.partition([1]).ranks[0], "int8")
