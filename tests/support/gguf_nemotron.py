"""GGUF files of Nemotron-H, as llama.cpp's converter writes them."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import torch
import transformers as hf

from tests.support.gguf_converted import write_converted

_PLAIN = ("ssm_conv1d.weight", "ssm_a", "ssm_d", "ssm_norm.weight", "ffn_gate_inp.weight")  # tensors that stay fp32
_WHOLE = {
    "model.embeddings.weight": "token_embd.weight",
    "model.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_OF_LAYER = {
    "norm.weight": "attn_norm.weight",
    "mixer.in_proj.weight": "ssm_in.weight",
    "mixer.conv1d.weight": "ssm_conv1d.weight",
    "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.norm.weight": "ssm_norm.weight",
    "mixer.out_proj.weight": "ssm_out.weight",
    "mixer.o_proj.weight": "attn_output.weight",
    **{f"mixer.{each}_proj.weight": f"attn_{each}.weight" for each in "qkv"},
    "mixer.gate.weight": "ffn_gate_inp.weight",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    **{f"mixer.{each}_proj.weight": f"ffn_{each}.weight" for each in ("up", "down")},
    **{f"mixer.experts.{each}_proj": f"ffn_{each}_exps.weight" for each in ("up", "down")},
    **{f"mixer.shared_experts.{each}_proj.weight": f"ffn_{each}_shexp.weight" for each in ("up", "down")},
}


def save_gguf_nemotron(model: hf.PreTrainedModel, path: Path, kind: str) -> Path:
    """Matrices are of `kind`. The model is given the values that the file holds."""
    config = model.config
    has_experts = "moe" in config.layers_block_type
    writer = gguf.GGUFWriter(path, "nemotron_h_moe" if has_experts else "nemotron_h")
    _add_metadata(writer, config, has_experts=has_experts)
    write_converted(writer, _converted(model), kind, lambda name: name.endswith(_PLAIN))
    return path


def _add_metadata(writer: gguf.GGUFWriter, config: hf.NemotronHConfig, *, has_experts: bool) -> None:
    kinds = config.layers_block_type
    width = config.moe_intermediate_size if has_experts else config.intermediate_size
    heads = config.num_key_value_heads
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(kinds))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in kinds])
    writer.add_feed_forward_length([width if kind in ("mlp", "moe") else 0 for kind in kinds])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    writer.add_rope_scaling_finetuned(False)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_bos_token_id(config.bos_token_id)
    if has_experts:
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)


def _converted(model: hf.PreTrainedModel) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """Names and values as the file has them, and the model's own values if these may be rounded."""
    named = [*model.named_parameters(), *((name, each) for name, each in model.named_buffers() if "correction" in name)]
    for name, parameter in named:
        values = parameter.data
        _, _, layer, part = name.split(".", 3) if name.startswith("model.layers.") else ("", "", "", "")
        found = f"blk.{layer}.{_OF_LAYER[part]}" if part else _WHOLE[name]
        if part == "mixer.A_log":
            yield found, -torch.exp(values)[:, None], None
        elif part == "mixer.D":
            yield found, values[:, None], None
        elif part == "mixer.norm.weight":
            yield found, values.view(model.config.n_groups, -1), None
        elif part == "mixer.conv1d.weight":
            yield found, values[:, 0], None
        else:
            yield found, values, values
