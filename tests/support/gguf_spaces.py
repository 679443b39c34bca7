"""Metadata and tensors of Granite 4 with state spaces in GGUF files, as llama.cpp's converter writes them."""

import math
from collections.abc import Iterable, Iterator

import gguf
import torch
import transformers as hf

ARCHITECTURE = "granitehybrid"
PLAIN = ("conv1d.weight", "ssm_a", "ssm_d", "ssm_norm.weight", "ffn_gate_inp.weight")  # tensors that stay fp32


def add_space_metadata(writer: gguf.GGUFWriter, model: hf.PreTrainedModel) -> None:
    """Add the metadata that other architectures lack. Layers with a state space have no KV heads.

    The model loses its limits of steps, which files do not have.
    """
    config = model.config
    heads = config.num_key_value_heads
    writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in config.layer_types])
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_rope_scaling_finetuned(False)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if config.num_local_experts:
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    for layer in model.model.layers:
        if layer.mamba is not None:
            layer.mamba.time_step_limit = (0.0, math.inf)


def space_tensors(
    tensors: Iterable[tuple[str, torch.Tensor]], model: hf.PreTrainedModel
) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's `tensors` as the converter has them, views all of them but decays."""
    groups = model.config.mamba_n_groups
    shared = "_shexp" if model.config.num_local_experts else ""
    for name, tensor in tensors:
        at = f"blk.{name.split('.')[2]}." if name.startswith("model.layers.") else ""
        part = name.removesuffix(".weight").rpartition(".")[2]
        if part == "A_log":
            yield f"{at}ssm_a", -torch.exp(tensor)[:, None]
        elif part == "D":
            yield f"{at}ssm_d", tensor[:, None]
        elif part == "dt_bias":
            yield f"{at}ssm_dt.bias", tensor
        elif name.endswith("mamba.norm.weight"):
            yield f"{at}ssm_norm.weight", tensor.view(groups, -1)
        elif name.endswith("conv1d.weight"):
            yield name, tensor[:, 0]
        elif name.endswith("router.weight"):
            yield f"{at}ffn_gate_inp.weight", tensor
        elif ".experts." in name:
            yield f"{at}ffn_{part.removesuffix('_proj')}_exps.weight", tensor
        elif part == "input_linear":
            for each, half in zip(("gate", "up"), tensor.chunk(2), strict=True):
                yield f"{at}ffn_{each}{shared}.weight", half
        elif part == "output_linear":
            yield f"{at}ffn_down{shared}.weight", tensor
        else:
            yield name, tensor
