"""Reads a model's configuration from a GGUF file's metadata.

The metadata is put in the words of Hugging Face's config.json and then mapped by the family, so that each family has
one mapping and one set of checks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.config import gguf_deepseek
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.family import Family
from numaserve.workers.models.registry import FAMILIES, GGUF_ARCHITECTURES, family_of
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.models.stored import GGUF_BLOCKS, Stored
from numaserve.workers.weights.gguf_file import GGUFFile, open_gguf, shape_of
from numaserve.workers.weights.gguf_names import expert_names, hugging_face_name

# GGUF's key after "<architecture>." to config.json's.
_KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
# Gemma's 27B models divide by the hidden size per head instead of the head's; the file does not say so.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}

# The families with experts, and whether llama.cpp divides their weights by their sum.
_RENORMALIZED = {"mixtral": True, "qwen2_moe": False, "qwen3_moe": True, "gpt_oss_gguf": True}
_SOFTMAX = 1  # LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX
_SOFTMAX_OF_CHOSEN = 3  # LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT: the same as to divide by the sum
_GPT_OSS = "gpt-oss"


def load_gguf_config(path: Path) -> ModelConfig:
    """The configuration of a .gguf file. Raises `OperatorError` as `load_model_config` does."""
    file = open_gguf(path)
    name = file.scalar("general.architecture")
    if not isinstance(name, str):
        raise OperatorError(f"{path}: general.architecture is missing; this is not a language model")
    family = family_of(name, str(path), GGUF_ARCHITECTURES)
    metadata = Fields({key: file.scalar(key) for key in file.fields}, str(path))
    if family.name == "llama" and metadata.values.get(f"{name}.expert_count"):
        family = FAMILIES["mixtral"]
    if name == gguf_deepseek.ARCHITECTURE and gguf_deepseek.has_sigmoid_scores(metadata):
        family = FAMILIES["deepseek_v3"]
    fields = Fields(_as_config_json(file, metadata, name, family), str(path))
    config = family.configure(fields, family.architectures[0])
    if config.mla is not None:
        is_split = all(not tensor.name.endswith(".attn_kv_b.weight") for tensor in file.tensors)
        config = replace(config, mla=replace(config.mla, split_kv_b=is_split))
    # The converter has added the one already.
    return replace(config, norm_plus_one=False, stored=_stored(file, family))


def _stored(file: GGUFFile, family: Family) -> dict[str, Stored]:
    """The matrices in block formats. Others that are not supported are told about when they are read."""
    stored: dict[str, Stored] = {}
    for tensor in file.tensors:
        block = GGUF_BLOCKS.get(tensor.tensor_type.name.lower())
        if block is not None:
            names = expert_names(tensor.name, shape_of(tensor), family) or [hugging_face_name(tensor.name, family)]
            stored.update((name.removeprefix("model.").removesuffix(".weight"), block) for name in names)
    return stored


def _as_config_json(file: GGUFFile, metadata: Fields, name: str, family: Family) -> dict[str, object]:
    tensors = {tensor.name: tensor for tensor in file.tensors}
    if "token_embd.weight" not in tensors:
        raise metadata.error("tensor token_embd.weight is missing; this is not a language model")
    values: dict[str, object] = {
        key: value for source, key in _KEYS.items() if (value := file.scalar(f"{name}.{source}")) is not None
    }
    is_latent = name == gguf_deepseek.ARCHITECTURE
    values |= gguf_deepseek.deepseek_values(metadata) if is_latent else _expert_values(metadata, name, family)
    values["vocab_size"] = int(tensors["token_embd.weight"].shape[-1])
    values["tie_word_embeddings"] = "output.weight" not in tensors
    values["attention_bias"] = "blk.0.attn_q.bias" in tensors
    values["eos_token_id"] = _end_ids(file)
    values["bos_token_id"] = file.scalar("tokenizer.ggml.bos_token_id")
    fields = Fields(values, metadata.where)
    hidden = fields.integer("hidden_size", 1, 2**17)
    heads = fields.integer("num_attention_heads", 1, 2**10)
    head_dim = fields.integer("head_dim", 1, 2**10, max(1, hidden // heads))
    if not is_latent:
        metadata.refuse(f"{name}.attention.value_length", head_dim)
    if name in _GEMMA_27B_LAYERS:
        is_27b = values.get("num_hidden_layers") == _GEMMA_27B_LAYERS[name]
        values["query_pre_attn_scalar"] = hidden // heads if is_27b else head_dim
    rotary = metadata.integer(f"{name}.rope.dimension_count", 1, head_dim, head_dim)
    values["partial_rotary_factor"] = rotary / head_dim
    values["rope_scaling"] = _rope_scaling(file, metadata, name, rotary)
    return values


def _expert_values(metadata: Fields, name: str, family: Family) -> dict[str, object]:
    """What is missing, or in none of these files, is what llama.cpp takes."""
    if family.name not in _RENORMALIZED:
        metadata.refuse(f"{name}.expert_count", 0)
        return {}
    metadata.refuse(f"{name}.expert_gating_func", _SOFTMAX, *([_SOFTMAX_OF_CHOSEN] if name == _GPT_OSS else []))
    metadata.refuse(f"{name}.expert_weights_scale", 0.0, 1.0)
    used = metadata.integer(f"{name}.expert_used_count", 1, 2**10)
    width = metadata.integer(f"{name}.feed_forward_length", 1, 2**20)
    values = {"intermediate_size": metadata.values.get(f"{name}.expert_feed_forward_length", width)}
    return (values if name == _GPT_OSS else {}) | {
        "num_local_experts": metadata.values.get(f"{name}.expert_count"),
        "num_experts_per_tok": used,
        "norm_topk_prob": _RENORMALIZED[family.name],
        "moe_intermediate_size": metadata.integer(f"{name}.expert_feed_forward_length", 1, 2**20, width // used),
        "shared_expert_intermediate_size": metadata.integer(
            f"{name}.expert_shared_feed_forward_length", 1, 2**20, width
        ),
        "rope_theta": metadata.number(f"{name}.rope.freq_base", 1.0, 1e12, 10000.0),
    }


def _end_ids(file: GGUFFile) -> list[object]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [file.scalar(f"tokenizer.ggml.{key}") for key in keys]
    return list(dict.fromkeys(item for item in ids if item is not None))


def _rope_scaling(file: GGUFFile, metadata: Fields, name: str, rotary: int) -> dict[str, object] | None:
    scaling = f"{name}.rope.scaling"
    length = metadata.values.get(f"{name}.context_length")
    original = metadata.values.get(f"{scaling}.original_context_length") or length
    attention_factor = metadata.values.get(f"{scaling}.attn_factor")
    if (factors := _factors(file, "rope_freqs.weight", rotary)) is not None:
        # Llama 3's scaling comes as the divisor of each frequency: longrope with one set of factors.
        return _longrope(factors, factors, original, 1.0)
    long = _factors(file, "rope_factors_long.weight", rotary)
    short = _factors(file, "rope_factors_short.weight", rotary)
    if long is not None and short is not None:
        return _longrope(short, long, original, attention_factor)
    kind = metadata.text(f"{scaling}.type", "none")
    if kind == "none":
        return None
    return {
        **(gguf_deepseek.mscale(metadata) if name == gguf_deepseek.ARCHITECTURE else {}),
        **({"truncate": False} if name == _GPT_OSS else {}),  # as the model was trained; the file does not say
        "rope_type": kind,
        "factor": metadata.values.get(f"{scaling}.factor"),
        "original_max_position_embeddings": original,
        "beta_fast": metadata.values.get(f"{scaling}.yarn_beta_fast"),
        "beta_slow": metadata.values.get(f"{scaling}.yarn_beta_slow"),
    }


def _longrope(short: list[float], long: list[float], original: object, attention_factor: object) -> dict[str, object]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        "attention_factor": attention_factor,
    }


def _factors(file: GGUFFile, name: str, rotary: int) -> list[float] | None:
    for tensor in file.tensors:
        if tensor.name == name and tensor.data.dtype == np.float32 and tensor.data.shape == (rotary // 2,):
            factors: list[float] = tensor.data.tolist()
            return factors
    return None
