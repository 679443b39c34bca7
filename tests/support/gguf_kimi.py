"""GGUF files of Kimi Linear, as llama.cpp's converter writes them."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import torch
import transformers as hf

from tests.support.gguf_converted import write_converted

_PLAIN = ("ssm_a", "ssm_norm.weight", "ffn_gate_inp.weight")  # tensors that stay fp32, as convolutions do
_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_OF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    **{f"self_attn.{each}_proj.weight": f"attn_{each}.weight" for each in "qkv"},
    **{f"self_attn.g_{each}_proj.weight": f"ssm_g_{each}.weight" for each in "ab"},
    **{f"self_attn.forget_gate.f_{each}_proj.weight": f"ssm_f_{each}.weight" for each in "ab"},
    "self_attn.forget_gate.A_log": "ssm_a",
    "self_attn.forget_gate.dt_bias": "ssm_dt.bias",
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    **{f"mlp.{each}_proj.weight": f"ffn_{each}.weight" for each in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{each}_proj.weight": f"ffn_{each}_shexp.weight" for each in ("gate", "up", "down")},
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
}


def save_gguf_kimi(model: hf.PreTrainedModel, path: Path, kind: str) -> Path:
    """Matrices are of `kind`. The model is given the values that the file holds. A file has one number of heads for all
    layers, and no groups of experts."""
    writer = gguf.GGUFWriter(path, "kimi-linear")
    _add_metadata(writer, model.config)
    write_converted(writer, _converted(model), kind, lambda name: "conv1d" in name or name.endswith(_PLAIN))
    return path


def _add_metadata(writer: gguf.GGUFWriter, config: hf.KimiLinearConfig) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([int(kind == "full_attention") for kind in config.layer_types])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_kda_head_dim(config.linear_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_group_used_count(config.topk_group)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_bos_token_id(config.bos_token_id)


def _converted(model: hf.PreTrainedModel) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """Names and values as the file has them, and the model's own values if these may be rounded."""
    config = model.config
    named = [*model.named_parameters(), *((name, each) for name, each in model.named_buffers() if "correction" in name)]
    for name, parameter in named:
        values = parameter.data
        if not name.startswith("model.layers."):
            yield _WHOLE[name], values, values
            continue
        _, _, layer, part = name.split(".", 3)
        at = f"blk.{layer}."
        if part == "self_attn.forget_gate.A_log":
            yield f"{at}ssm_a", -torch.exp(values), None
        elif part == "self_attn.conv1d.weight":
            for each, rows in zip("qkv", values.chunk(3), strict=True):
                yield f"{at}ssm_conv1d_{each}.weight", rows[None], None
        elif part == "self_attn.kv_b_proj.weight":
            of_heads = values.unflatten(0, (config.num_attention_heads, -1))
            keys, expanded = of_heads[:, : config.qk_nope_head_dim].mT, of_heads[:, config.qk_nope_head_dim :]
            yield f"{at}attn_k_b.weight", keys, keys
            yield f"{at}attn_v_b.weight", expanded, expanded
        elif part == "mlp.experts.gate_up_proj":
            for each, rows in zip(("gate", "up"), values.chunk(2, dim=1), strict=True):
                yield f"{at}ffn_{each}_exps.weight", rows, rows
        else:
            yield f"{at}{_OF_LAYER[part]}", values, values
