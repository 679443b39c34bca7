"""Kimi Linear: configurations and tensors as they are published."""

from pathlib import Path

import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.layers.mixers.kimi_delta import KimiDelta
from numaserve.workers.layers.stored import GGUF_BLOCKS
from safetensors.torch import load_file
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints


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
