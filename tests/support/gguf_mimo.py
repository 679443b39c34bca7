"""Metadata of MiMo-V2-Flash in GGUF files, as llama.cpp's converter writes it."""

import gguf
import transformers as hf

ARCHITECTURE = "mimo2"


def add_mimo_metadata(writer: gguf.GGUFWriter, config: hf.PreTrainedConfig) -> None:
    """Add the metadata that other architectures lack. The window is that of the published configuration, which does not
    count the current token; no key states which layers are dense."""
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    writer.add_head_count_kv([config.num_key_value_heads * (2 if slide else 1) for slide in slides])
    writer.add_sliding_window(config.sliding_window - 1)
    writer.add_sliding_window_pattern(slides)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.v_head_dim)
    writer.add_float32(f"{ARCHITECTURE}.attention.value_scale", config.attention_value_scale)
    rope = config.rope_parameters["full_attention"]
    writer.add_rope_dimension_count(int(config.head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
