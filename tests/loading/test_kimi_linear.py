"""Kimi Linear: configurations and tensors as they are published."""

import re
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.kimi_delta import KimiDelta
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.layers.stored import GGUF_BLOCKS
from numaserve.workers.models.load import load_model_config
from safetensors.torch import load_file
from test_model_config import write
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.models import layers_of, the_only

# As published, without what has no meaning here.
KIMI_LINEAR: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "bos_token_id": 163584,
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


def test_kimi_linear_is_read_as_published(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **KIMI_LINEAR))
    delta, attention, experts = (the_only(config, kind) for kind in (KimiDelta, LatentAttention, Experts))
    assert (delta.heads, delta.dim, delta.taps, delta.eps) == (32, 128, 4, 1e-5)
    assert (attention.heads, attention.kv_rank, attention.query_dim, attention.value_dim) == (32, 512, 192, 128)
    assert (attention.rope.kind, attention.rope.rotary_dim, attention.scale) == ("none", 64, 192**-0.5)
    assert (experts.routing.num_experts, experts.routing.top_k, experts.routing.scale) == (256, 8, 2.446)
    assert (experts.intermediate, experts.shared, config.max_position) == (1024, 1024, 1048576)
    kinds = [isinstance(block.attention, LatentAttention) for block in config.decoder.blocks]
    assert [layer + 1 for layer, is_full in enumerate(kinds) if is_full] == [4, 8, 12, 16, 20, 24, 27]
    assert len(layers_of(config, Experts)) == 26


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mla_use_nope": False}, "mla_use_nope=False is not supported"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func='softmax' is not supported"),
        ({"layer_types": ["linear_attention"] * 27}, "all 27 layers are of kind linear_attention; at least one"),
        ({"linear_attn_config": {"head_dim": 513}}, "linear_head_dim must be an integer from 1 to 512, not 513"),
        ({"linear_attn_config": {"kda_layers": [28]}}, "kda_layers"),
    ],
)
def test_what_the_model_does_not_have_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load_model_config(write(tmp_path, **KIMI_LINEAR | changes))
    assert "\n" not in str(error.value)


def test_tensors_of_kimi_linear_have_published_names(tmp_path: Path) -> None:
    folder = checkpoints.save(checkpoints.random_model("kimi_linear"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    at = "model.layers.0.self_attn."
    assert tensors[f"{at}A_log"].shape == (1, 1, 5, 1)
    assert {f"{at}{name}" for name in ("q_conv1d.weight", "f_a_proj.weight", "dt_bias", "g_b_proj.weight")} <= set(
        tensors
    )
    assert {f"model.layers.1.block_sparse_moe.experts.7.w{n}.weight" for n in (1, 2, 3)} <= set(tensors)


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_a_gguf_file_of_kimi_linear_computes_what_the_model_computes(tp: int, tmp_path: Path, team: Team) -> None:
    config = checkpoints.MOE_CASES["kimi_linear"]()
    config.linear_num_heads, config.n_group = config.num_attention_heads, 1
    model = checkpoints.build(config)
    assert_same_logits(checkpoints.save_gguf(model, tmp_path / "model.gguf", "F32"), model, tp, team)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_gguf_file_stays_quantized_but_for_decays(kind: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(
        hf.KimiLinearConfig(
            **checkpoints.sizes(256, 4, 4, 256, kv_lora_rank=64, num_local_experts=4, num_experts_per_tok=2),
            **checkpoints.LATENT_HEADS,
            layer_types=["linear_attention", "full_attention"],
            mlp_layer_types=["dense", "sparse"],
            linear_num_heads=4,
            linear_head_dim=64,
            moe_intermediate_size=256,
        )
    )
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    attention = model.model.layers[0].self_attn
    gate = attention.forget_gate
    for module in (attention.b_proj, gate.f_a_proj, gate.f_b_proj, attention.g_a_proj):
        module.weight.data.copy_(module.weight.data.bfloat16().float())
    model.model.embed_tokens.weight.data.copy_(model.model.embed_tokens.weight.data.bfloat16().float())
    for weights in assert_same_logits(path, model, 2, team, atol=5e-4):
        delta = weights.config.decoder.blocks[0].attention
        assert isinstance(delta, KimiDelta)
        formats = [weights.matrix(each).format for each in (delta.qkv, delta.o, delta.gate, delta.narrow, delta.decays)]
        assert formats == [GGUF_BLOCKS[kind.lower()].native] * 3 + ["bf16"] * 2
