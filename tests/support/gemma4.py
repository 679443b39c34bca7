"""Tiny configurations of Gemma 4, and checkpoints in the form in which they are published."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

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


def unified_config(sizes: dict[str, Any], **more: Any) -> hf.PreTrainedConfig:
    """The text model of the unified 12B, with `more` fields."""
    return hf.Gemma4UnifiedTextConfig(**sizes | KEYS_ONLY | more, final_logit_softcapping=30.0)


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
    # Random texts have no token below 3: transformers takes that of images for padding.
    tokens = {"boi_token_id": 495, "eoi_token_id": 496, "image_token_id": 2}
    if isinstance(text, hf.Gemma4UnifiedTextConfig):
        vision = {"mm_embed_dim": text.hidden_size, "mm_posemb_size": 280, "patch_size": 2, "pooling_kernel_size": 1}
        return unified_around(text, vision | {"output_proj_dims": text.hidden_size}, **tokens)
    vision = {"num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 840}
    return hf.Gemma4Config(text_config=text.to_dict(), vision_config=_VISION | vision, **tokens)


def unified_around(text: hf.PreTrainedConfig, vision: dict[str, Any], **tokens: int) -> hf.PreTrainedConfig:
    """The same for a unified model, whose audio is projected too."""
    audio = {"audio_embed_dim": 16}
    return hf.Gemma4UnifiedConfig(text_config=text.to_dict(), vision_config=vision, audio_config=audio, **tokens)


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
