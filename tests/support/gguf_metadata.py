"""The metadata of GGUF files, as llama.cpp's converter makes it of a configuration of transformers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gguf
import transformers as hf

Config = hf.PreTrainedConfig
Values = Mapping[str, Any]
SIGMOID, SOFTMAX = int(gguf.ExpertGatingFuncType.SIGMOID), int(gguf.ExpertGatingFuncType.SOFTMAX)
_FULL, _SLIDING = "full_attention", "sliding_attention"

# GGUF's key, and the fields of configurations that it comes from: the first one that is there.
_KEYS = {
    "embedding_length": ("hidden_size",),
    "context_length": ("max_position_embeddings",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size_mlp", "intermediate_size"),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("v_head_dim", "head_dim"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "attention.scale": ("attention_multiplier",),
    "attention.value_scale": ("attention_value_scale",),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "top_k_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "expert_shared_count": ("n_shared_experts",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "interleave_moe_layer_step": ("interleave_moe_layer_step",),
    "leading_dense_block_count": ("first_k_dense_replace", "num_dense_layers"),
    "shortconv.l_cache": ("conv_L_cache",),
    "kda.head_dim": ("linear_head_dim",),
    "ssm.conv_kernel": ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"),
    "ssm.state_size": ("linear_key_head_dim", "mamba_d_state", "ssm_state_size"),
    "ssm.group_count": ("linear_num_key_heads", "mamba_n_groups", "n_groups"),
    "ssm.time_step_rank": ("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"),
    "tokenizer.ggml.bos_token_id": ("bos_token_id",),
    "tokenizer.ggml.eos_token_id": ("eos_token_id",),
}


@dataclass(frozen=True)
class Form:
    """The form of a type of models in GGUF files.

    `values` extend or replace what all types have; None leaves out a key. With `pairs`, rotated dimensions lie in
    pairs. `experts` is the type of the matrices of experts, where it is not that of the others.
    """

    architecture: str
    values: Callable[[Config], Values] = lambda config: {}
    pairs: bool = False
    experts: str | None = None


def form_of(config: Config) -> Form:
    """Return the form of a model's file."""
    form = FORMS[config.model_type]
    has_experts = "moe" in (getattr(config, "layers_block_type", None) or ())
    return replace(form, architecture=f"{form.architecture}_moe") if has_experts else form


def metadata(config: Config, form: Form) -> dict[str, Any]:
    """Return the metadata of a model's file by its keys, without the architecture's name before them."""
    values = config.to_dict()  # attributes that layers have in other sizes could not be read
    found = {}
    for key, fields in _KEYS.items():
        named = (values.get(config.attribute_map.get(field, field)) for field in fields)
        found[key] = next((value for value in named if value is not None), None)
    if found["attention.key_length"] is None:
        found["attention.key_length"] = config.hidden_size // config.num_attention_heads
        found["attention.value_length"] = found["attention.value_length"] or found["attention.key_length"]
    if _SLIDING in (getattr(config, "layer_types", None) or ()):
        found["attention.sliding_window"] = config.sliding_window
    found |= _rope(config, found["attention.key_length"])
    return found | dict(form.values(config))


def _rope(config: Config, head_dim: int) -> dict[str, Any]:
    ropes = getattr(config, "rope_parameters", None) or {}
    rope = ropes.get(_FULL, ropes)
    if not rope:
        return {"rope.scaling.finetuned": False}  # that layers are not rotated
    # llama.cpp's converter widens the base of what has an alpha.
    widened = rope["alpha"] ** (head_dim / (head_dim - 2)) if "alpha" in rope else 1.0
    found = {
        "rope.freq_base": rope["rope_theta"] * widened,
        "rope.freq_base_swa": ropes.get(_SLIDING, {}).get("rope_theta"),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        "attention.temperature_scale": rope.get("llama_4_scaling_beta"),
    }
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {
            "rope.scaling.type": rope["rope_type"],
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope.get("original_max_position_embeddings"),
        }
    return found


def _without(*keys: str) -> dict[str, None]:
    return dict.fromkeys(keys)


_HEAD = ("attention.key_length", "attention.value_length", "rope.dimension_count")


def _sigmoid(config: Config) -> Values:
    return {"expert_gating_func": SIGMOID, "expert_weights_norm": getattr(config, "norm_topk_prob", None)}


def _latent(config: Config) -> Values:
    """Return the values of a file whose `kv_b_proj` is divided in two, as newer files have it."""
    rope, latent = config.qk_rope_head_dim, config.kv_lora_rank
    found = {
        "attention.head_count_kv": 1,
        "attention.key_length": latent + rope,
        "attention.value_length": latent,
        "attention.key_length_mla": config.qk_nope_head_dim + rope,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": rope,
    }
    if config.rope_parameters["rope_type"] == "yarn":
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * config.rope_parameters["mscale_all_dim"]
    if config.model_type == "deepseek_v2":
        return found
    return found | _sigmoid(config) | ({"expert_gating_func": SOFTMAX} if config.model_type == "mistral4" else {})


def unsplit(config: Config) -> Values:
    """Return the values of an older file of a model with latents, whose `kv_b_proj` is whole."""
    return {
        "attention.head_count_kv": config.num_attention_heads,
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": config.v_head_dim,
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
    }


def _only(config: Config, count: int) -> list[int]:
    """Return `count` for each layer with attention, and 0 for the others."""
    kinds = getattr(config, "layers_block_type", None) or config.layer_types
    return [count if kind == _FULL else 0 for kind in kinds]


def _kimi(config: Config) -> Values:
    """A file has one number of heads for all layers, and no groups of experts."""
    latent, rope = config.kv_lora_rank, config.qk_rope_head_dim
    return {
        "vocab_size": config.vocab_size,
        "attention.head_count_kv": _only(config, 1),
        "attention.key_length": latent + rope,
        "attention.value_length": config.head_dim,
        "attention.key_length_mla": config.qk_nope_head_dim + rope,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": rope,
        "rope.scaling.finetuned": None,
        "ssm.state_size": None,
        "leading_dense_block_count": config.mlp_layer_types.count("dense"),
        "expert_count": config.num_local_experts,
        "expert_group_count": None,
        "expert_gating_func": SIGMOID,
    }


def _delta(config: Config) -> Values:
    inner = config.linear_value_head_dim * config.linear_num_value_heads
    interval = config.layer_types.index(_FULL) + 1
    return {"ssm.inner_size": inner, "full_attention_interval": interval}


def _granite_hybrid(config: Config) -> Values:
    return {
        **_without(*_HEAD, *(() if config.num_local_experts else ("expert_count", "expert_used_count"))),
        "attention.head_count_kv": _only(config, config.num_key_value_heads),
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "rope.scaling.finetuned": config.position_embedding_type == "rope",
    }


def _nemotron(config: Config) -> Values:
    kinds, has_experts = config.layers_block_type, "moe" in config.layers_block_type
    width = config.moe_intermediate_size if has_experts else config.intermediate_size
    of_experts = ("count", "used_count", "feed_forward_length", "shared_feed_forward_length", "shared_count")
    without = _without(*(f"expert_{key}" for key in (*of_experts, "weights_scale", "group_count")))
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": _only(config, config.num_key_value_heads),
        "feed_forward_length": [width if kind in ("mlp", "moe") else 0 for kind in kinds],
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "expert_group_used_count": None,
        **({"expert_weights_norm": config.norm_topk_prob} if has_experts else without),
    }


def _lfm(config: Config) -> Values:
    found: dict[str, Any] = {"attention.head_count_kv": _only(config, config.num_key_value_heads)}
    found |= _without(*_HEAD, "expert_weights_scale")
    if config.model_type == "lfm2_moe":
        return found | {"expert_gating_func": SIGMOID}
    width = config.intermediate_size
    if config.block_auto_adjust_ff_dim:
        width = int(config.block_ffn_dim_multiplier * int(2 * width / 3))
        width = config.block_multiple_of * -(-width // config.block_multiple_of)
    return found | {"feed_forward_length": width}


def _slides(config: Config) -> dict[str, Any]:
    return {"attention.sliding_window_pattern": [kind == _SLIDING for kind in config.layer_types]}


def _mimo(config: Config) -> Values:
    """The window does not count the current token; no key states which layers are dense."""
    slides = [kind == _SLIDING for kind in config.layer_types]
    return _slides(config) | {
        "attention.head_count_kv": [config.num_key_value_heads * (2 if slide else 1) for slide in slides],
        "attention.sliding_window": config.sliding_window - 1,
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": None,
    }


def _gemma4(config: Config) -> Values:
    slides = [kind == _SLIDING for kind in config.layer_types]
    sliding, full = (config.per_layer_config[config.layer_types.index(kind)] for kind in (_SLIDING, _FULL))
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    width = config.intermediate_size
    widths = [width if layer < first_shared else 2 * width for layer in range(len(slides))]
    return _slides(config) | {
        "feed_forward_length": widths if config.use_double_wide_mlp else width,
        "attention.head_count_kv": [(sliding if each else full).num_key_value_heads for each in slides],
        "attention.key_length": full.head_dim,
        "attention.value_length": full.head_dim,
        "attention.key_length_swa": sliding.head_dim,
        "attention.value_length_swa": sliding.head_dim,
        "rope.dimension_count": full.head_dim,
        "rope.dimension_count_swa": sliding.head_dim,
        **({} if config.enable_moe_block else {"expert_count": None, "expert_used_count": None}),
    }


def _of_intermediate(config: Config) -> Values:
    """Return the width of experts that a configuration states where others state that of dense layers."""
    return {"expert_feed_forward_length": config.intermediate_size}


_LATENT = Form("deepseek2", _latent)
FORMS = {  # by type of model; others have their type's name and need no more
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "glm4_moe_lite": _LATENT,
    "mistral4": Form("mistral4", _latent),
    "ernie4_5": Form("ernie4_5"),
    "gemma2": Form("gemma2"),
    "gemma3_text": Form("gemma3"),
    "gemma4_text": Form("gemma4", _gemma4),
    "glm4_moe": Form("glm4moe", _sigmoid),
    "gpt_oss": Form("gpt-oss", _of_intermediate, experts="MXFP4"),
    "granite": Form("granite", pairs=True),
    "granitemoehybrid": Form("granitehybrid", _granite_hybrid, pairs=True),
    "hunyuan_v1_dense": Form("hunyuan-dense"),
    "kimi_linear": Form("kimi-linear", _kimi),
    "lfm2": Form("lfm2", _lfm),
    "lfm2_moe": Form("lfm2moe", _lfm),
    "llama": Form("llama", pairs=True),
    "llama4_text": Form("llama4", _of_intermediate),
    "mimo_v2_flash": Form("mimo2", _mimo),
    "minimax_m2": Form("minimax-m2", lambda config: {**_of_intermediate(config), **_sigmoid(config)}),
    "ministral3": Form("mistral3", pairs=True),
    "mixtral": Form("llama", pairs=True),
    "nemotron_h": Form("nemotron_h", _nemotron),
    "olmo2": Form("olmo2"),
    "olmo3": Form("olmo2", _slides),
    "paddleocr_vl_text": Form("paddleocr"),
    "qwen2": Form("qwen2"),
    "qwen2_moe": Form("qwen2moe"),
    "qwen3": Form("qwen3"),
    "qwen3_5_moe_text": Form("qwen35moe", _delta),
    "qwen3_5_text": Form("qwen35", _delta),
    "qwen3_moe": Form("qwen3moe"),
    "qwen3_next": Form("qwen3next", _delta),
    "qwen3_vl_moe_text": Form("qwen3vlmoe"),
    "qwen3_vl_text": Form("qwen3vl"),
    "smollm3": Form("smollm3", pairs=True),
}
