"""Writes gpt-oss as a GGUF file, as llama.cpp's converter does."""

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as hf

ARCHITECTURE = "gpt-oss"
Q = gguf.GGMLQuantizationType
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
}


def save_gguf_oss(model: hf.PreTrainedModel, path: Path) -> Path:
    """Experts in MXFP4, other matrices in Q8_0. The model is given the values that the file holds."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    _add_metadata(writer, model.config)

    def add(name: str, values: torch.Tensor, kind: Q) -> torch.Tensor:
        """Write values whose last dimension is the in features; what is kept of them."""
        array = np.ascontiguousarray(values.numpy())
        data = gguf.quants.quantize(array, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        return torch.from_numpy(gguf.quants.dequantize(data, kind).reshape(array.shape).astype(np.float32))

    for name, parameter in model.named_parameters():
        values = parameter.data
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            _add_of_layer(f"blk.{layer}.", rest, values, add)
        else:
            top = {"model.embed_tokens.weight": "token_embd", "lm_head.weight": "output"}.get(name, "output_norm")
            values.copy_(add(f"{top}.weight", values, Q.F32 if top == "output_norm" else Q.Q8_0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_of_layer(at: str, name: str, values: torch.Tensor, add: object) -> None:
    assert callable(add)
    if name == "self_attn.sinks":
        add(f"{at}attn_sinks.weight", values, Q.F32)
    elif name == "mlp.experts.gate_up_proj":
        for half, part in enumerate(("gate", "up")):
            kept = add(f"{at}ffn_{part}_exps.weight", values[..., half::2].transpose(1, 2), Q.MXFP4)
            values[..., half::2] = kept.transpose(1, 2)
    elif name == "mlp.experts.gate_up_proj_bias":
        for half, part in enumerate(("gate", "up")):
            add(f"{at}ffn_{part}_exps.bias", values[..., half::2], Q.F32)
    elif name == "mlp.experts.down_proj":
        values.copy_(add(f"{at}ffn_down_exps.weight", values.transpose(1, 2), Q.MXFP4).transpose(1, 2))
    elif name == "mlp.experts.down_proj_bias":
        add(f"{at}ffn_down_exps.bias", values, Q.F32)
    else:
        module, _, kind = name.rpartition(".")
        plain = values.ndim == 1 or module == "mlp.router"
        values.copy_(add(f"{at}{_NAMES[module]}.{kind}", values, Q.F32 if plain else Q.Q8_0))


def _add_metadata(writer: gguf.GGUFWriter, config: hf.PreTrainedConfig) -> None:
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
