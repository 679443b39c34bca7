"""What GGUF files of DeepSeek's architecture (deepseek2) have of their own, as llama.cpp's converter writes it."""

from collections.abc import Iterable, Iterator

import gguf
import torch
import transformers as hf

ARCHITECTURE, MISTRAL4 = "deepseek2", "mistral4"


def add_latent_metadata(writer: gguf.GGUFWriter, config: hf.PreTrainedConfig, *, split: bool) -> None:
    """Metadata beside what all architectures have. `split`: of files since what expands latents is absorbed."""
    query, latent = config.qk_nope_head_dim + config.qk_rope_head_dim, config.kv_lora_rank
    writer.add_head_count_kv(1 if split else config.num_attention_heads)
    writer.add_key_length(latent + config.qk_rope_head_dim if split else query)
    writer.add_value_length(latent if split else config.v_head_dim)
    if split:
        writer.add_key_length_mla(query)
        writer.add_value_length_mla(config.v_head_dim)
    writer.add_kv_lora_rank(latent)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if config.rope_parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_yarn_log_mul(0.1 * config.rope_parameters["mscale_all_dim"])
    add_expert_metadata(writer, config)
    if config.model_type != "deepseek_v2":
        gating = (
            gguf.ExpertGatingFuncType.SOFTMAX if config.model_type == MISTRAL4 else gguf.ExpertGatingFuncType.SIGMOID
        )
        writer.add_expert_gating_func(gating)
        writer.add_expert_weights_norm(config.norm_topk_prob)


def add_expert_metadata(writer: gguf.GGUFWriter, config: hf.PreTrainedConfig) -> None:
    """What files say of experts as DeepSeek's."""
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)


def latent_tensors(
    tensors: Iterable[tuple[str, torch.Tensor]], model: hf.PreTrainedModel, *, split: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's `tensors` as the converter has them, views all of them."""
    config = model.config
    for name, tensor in tensors:
        if split and ".kv_b_proj." in name:
            each = tensor.unflatten(0, (config.num_attention_heads, -1))
            yield name.replace("kv_b_proj", "k_b_proj"), each[:, : config.qk_nope_head_dim].transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), each[:, config.qk_nope_head_dim :]
        else:
            yield name, tensor
