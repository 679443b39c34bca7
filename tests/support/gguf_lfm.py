"""Metadata and tensors of LFM2 in GGUF files, as llama.cpp's converter writes them."""

from collections.abc import Iterable, Iterator

import gguf
import torch
import transformers as hf

ARCHITECTURES = {"lfm2": "lfm2", "lfm2_moe": "lfm2moe"}
PLAIN = ("conv.conv.weight", "feed_forward.gate.weight")  # matrices that stay fp32
_EXPERTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def add_lfm_metadata(writer: gguf.GGUFWriter, model: hf.PreTrainedModel) -> None:
    """Add the metadata that other architectures lack. Layers with a convolution have no KV heads."""
    config = model.config
    heads = config.num_key_value_heads
    writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in config.layer_types])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    if config.model_type == "lfm2_moe":
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    else:
        writer.add_feed_forward_length(model.model.layers[0].feed_forward.w1.out_features)


def lfm_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's `tensors` as the converter has them, views all of them."""
    for name, tensor in tensors:
        if name.endswith("conv.conv.weight"):
            yield name, tensor[:, 0]
        elif ".experts." in name:
            at, _, part = name.removesuffix(".weight").rpartition(".")
            yield f"{at.removeprefix('model.')}.{_EXPERTS[part]}.weight", tensor
        else:
            yield name, tensor
