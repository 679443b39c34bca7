"""Tiny configurations of Gemma 4, and checkpoints in the form in which they are published."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from tests.support.k_quants import fitting, quantize

_SLIDING, _FULL = "sliding_attention", "full_attention"
# Of E2B and E4B: the last two layers of each kind share keys and values, the inputs of layers are divided unevenly.
SHARED: dict[str, Any] = {
    "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _FULL, _SLIDING, _FULL],
    "num_kv_shared_layers": 4,
    "hidden_size_per_layer_input": 32,
    "use_double_wide_mlp": True,
}
# Of 12B and larger: values of layers that see all tokens are their keys.
KEYS_ONLY: dict[str, Any] = {
    "layer_types": [_SLIDING, _SLIDING, _FULL],
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}
_NO_INPUTS = {"hidden_size_per_layer_input": 0}
EXPERTS = {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 72}
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def text_config(sizes: dict[str, Any], **more: Any) -> hf.PreTrainedConfig:
    """The text model of E2B to 31B, with `more` fields."""
    inputs = {"vocab_size_per_layer_input": sizes["vocab_size"]} | (_NO_INPUTS if "attention_k_eq_v" in more else {})
    return hf.Gemma4TextConfig(**sizes | inputs | more, final_logit_softcapping=30.0)


def unified_config(sizes: dict[str, Any]) -> hf.PreTrainedConfig:
    """The text model of the unified 12B."""
    return hf.Gemma4UnifiedTextConfig(**sizes | KEYS_ONLY, final_logit_softcapping=30.0)


def assistant_config(target: hf.PreTrainedConfig, **sizes: Any) -> hf.PreTrainedConfig:
    """An assistant of the text model `target`, with layers of both kinds and other `sizes`."""
    common = {name: getattr(target, name) for name in ("vocab_size", "max_position_embeddings", "sliding_window")}
    sliding, full = (target.per_layer_config[target.layer_types.index(kind)] for kind in (_SLIDING, _FULL))
    text = hf.Gemma4TextConfig(
        **common | sizes,
        **_NO_INPUTS,
        head_dim=sliding.head_dim,
        global_head_dim=full.head_dim,
        num_global_key_value_heads=full.num_key_value_heads,
        attention_k_eq_v=target.attention_k_eq_v,
        layer_types=[_SLIDING, _SLIDING, _FULL],
        num_hidden_layers=3,
        num_kv_shared_layers=3,
        vocab_size_per_layer_input=0,
        rope_parameters=target.rope_parameters,
    )
    return hf.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=target.hidden_size)


def random_assistant(target: hf.PreTrainedConfig) -> hf.PreTrainedModel:
    """A random assistant, in fp32, of the text model `target`, which has six query heads and three KV heads."""
    config = assistant_config(
        target, hidden_size=64, intermediate_size=160, num_attention_heads=6, num_key_value_heads=3
    )
    model = hf.Gemma4AssistantForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            value = 1.0 + 0.2 * noise if parameter.ndim == 1 else 1.5 * noise * parameter.shape[-1] ** -0.5
            parameter.copy_((0.2 * noise if "embed_tokens" in name else value).to(torch.bfloat16).float())
    return model.eval()


def save_assistant(target: hf.PreTrainedConfig, folder: Path) -> Path:
    """Write a random assistant of the text model `target`."""
    random_assistant(target).to(torch.bfloat16).save_pretrained(folder)
    return folder


def around(text: hf.PreTrainedConfig) -> hf.PreTrainedConfig:
    """A multimodal configuration around the text model's."""
    if isinstance(text, hf.Gemma4UnifiedTextConfig):
        vision = {"mm_embed_dim": text.hidden_size, "mm_posemb_size": 8, "patch_size": 2, "pooling_kernel_size": 1}
        return hf.Gemma4UnifiedConfig(
            text_config=text.to_dict(),
            vision_config=vision | {"output_proj_dims": text.hidden_size},
            audio_config={"audio_embed_dim": 16},
        )
    vision = {"num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 16}
    return hf.Gemma4Config(text_config=text.to_dict(), vision_config=_VISION | vision)


def save_as_published(folder: Path) -> None:
    """Give a saved checkpoint the fields of published ones, and keys and values of layers that share these."""
    config = folder / "config.json"
    outer = json.loads(config.read_text())
    fields = outer.get("text_config", outer)
    full = next(iter(fields.pop("per_layer_config").values()))
    fields["global_head_dim"] = full["head_dim"]
    fields["num_global_key_value_heads"] = full.get("num_key_value_heads")
    config.write_text(json.dumps(outer))
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    shared = [name for name in tensors if ".self_attn.q_" in name and name.replace("q_", "k_") not in tensors]
    for name in shared:
        for part in "kv":
            other = name.replace("self_attn.q_", f"self_attn.{part}_")
            if not other.endswith("v_norm.weight") and other not in tensors and "tower" not in name:
                tensors[other] = torch.zeros(3, *tensors[name].shape[1:], dtype=torch.bfloat16)
    save_file(tensors, file, {"format": "pt"})


def save_gguf(model: hf.PreTrainedModel, path: Path, kind: str) -> Path:
    """Write a text model as llama.cpp's converter does, with matrices of `kind` where their columns allow it. The model
    is given the values that the file holds."""
    config, layers = model.config, model.config.num_hidden_layers
    writer = gguf.GGUFWriter(path, "gemma4")
    _add_metadata(writer, config)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, layers)
    scalars = ((name, each) for name, each in model.named_buffers() if name.endswith("layer_scalar"))
    for name, values in (*model.named_parameters(), *scalars):
        array = np.ascontiguousarray(values.detach().float().numpy())
        is_plain = array.ndim == 1 or name.endswith("router.proj.weight")
        qtype = fitting(gguf.GGMLQuantizationType["F32" if is_plain else kind], array.shape[-1])
        data = quantize(array.reshape(-1, array.shape[-1]), qtype)
        writer.add_tensor(_in_file(table, name), data.reshape(*array.shape[:-1], -1), raw_dtype=qtype)
        with torch.no_grad():
            values.copy_(torch.from_numpy(gguf.quants.dequantize(data, qtype).reshape(array.shape).copy()))
    half = config.per_layer_config[config.layer_types.index(_FULL)].head_dim // 2
    turning = int(config.rope_parameters[_FULL]["partial_rotary_factor"] * half)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (half - turning), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _in_file(table: gguf.TensorNameMap, name: str) -> str:
    layer = name.split(".")[2]
    others = {
        "layer_scalar": "layer_output_scale.weight",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    for ending, found in others.items():
        if name.endswith(f".{ending}"):
            return f"blk.{layer}.{found}"
    known = table.get_name(name, try_suffixes=(".weight",))
    assert known is not None, name
    return known


def _add_metadata(writer: gguf.GGUFWriter, config: hf.PreTrainedConfig) -> None:
    slides = [kind == _SLIDING for kind in config.layer_types]
    sliding, full = (config.per_layer_config[config.layer_types.index(kind)] for kind in (_SLIDING, _FULL))
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    wide = 2 if config.use_double_wide_mlp else 1
    widths = [config.intermediate_size * (1 if layer < first_shared else wide) for layer in range(len(slides))]
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_feed_forward_length(widths if wide > 1 else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([(sliding if each else full).num_key_value_heads for each in slides])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(sliding.head_dim)
    writer.add_value_length_swa(sliding.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(sliding.head_dim)
    writer.add_rope_freq_base(config.rope_parameters[_FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters[_SLIDING]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_bos_token_id(config.bos_token_id)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
