"""Tiny random checkpoints, made on the spot with transformers: one for each family and for each feature of one.

The sizes are odd on purpose: heads that no number of ranks divides, widths that are no multiple of a tile.
"""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.support import gemma4, gguf_models, kimi
from tests.support.gguf_models import CENTRED, TURNED
from tests.support.launches import count

VOCAB = 499
MAX_POSITION = 512
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_position_embeddings": MAX_POSITION,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def sizes(hidden: int, heads: int, kv_heads: int, intermediate: int, layers: int = 2, **more: Any) -> dict[str, Any]:
    """A configuration's sizes, and `more` fields."""
    return COMMON | {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        **more,
    }


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=128)
_LINEAR = rope("linear", factor=4.0)
_LONGROPE = rope(
    "longrope",
    short_factor=[1.0 + 0.05 * i for i in range(30)],
    long_factor=[1.0 + 0.5 * i for i in range(30)],
    original_max_position_embeddings=256,
    partial_rotary_factor=0.75,
)
_GEMMA3_ROPE = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
OLMO3_ROPE = {
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "rope_theta": 5e5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
    }
}
LLAMA4 = {"attention_chunk_size": 40, "floor_scale": 24, "attn_scale": 0.3}
GRANITE = {"attention_multiplier": 0.15, "logits_scaling": 1.7}
_MINISTRAL = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
# Value heads that no number of ranks divides evenly, of other widths than key heads.
DELTA = {
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
}
LATENT_HEADS = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}

CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "llama-tied": lambda: hf.LlamaConfig(**sizes(576, 9, 3, 416, tie_word_embeddings=True)),
    "llama-untied": lambda: hf.LlamaConfig(**sizes(96, 4, 2, 164, head_dim=24)),
    "llama3-rope": lambda: hf.LlamaConfig(**sizes(96, 3, 1, 160, head_dim=32, attention_bias=True), **_LLAMA3),
    "llama-linear-rope": lambda: hf.LlamaConfig(**sizes(96, 2, 2, 96, head_dim=48), **_LINEAR),
    "llama-yarn": lambda: hf.LlamaConfig(**sizes(128, 4, 4, 224), **_YARN),
    "mistral": lambda: hf.MistralConfig(**sizes(256, 8, 2, 352, sliding_window=16)),
    "ministral3": lambda: hf.Ministral3Config(
        **sizes(96, 6, 2, 160, head_dim=24),
        **rope("yarn", factor=4.0, original_max_position_embeddings=24, **_MINISTRAL),
    ),
    "qwen2": lambda: hf.Qwen2Config(**sizes(192, 6, 3, 256)),
    "qwen3": lambda: hf.Qwen3Config(**sizes(128, 4, 2, 224, head_dim=64, tie_word_embeddings=True)),
    "gemma2": lambda: hf.Gemma2Config(
        **sizes(144, 6, 3, 192, head_dim=48, sliding_window=16, query_pre_attn_scalar=24, attn_logit_softcapping=5.0),
        final_logit_softcapping=4.0,
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **sizes(128, 4, 1, 160, layers=3, head_dim=32, sliding_window=16, query_pre_attn_scalar=32),
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        **_GEMMA3_ROPE,
    ),
    "gemma4": lambda: gemma4.text_config(
        sizes(120, 5, 1, 160, layers=7, head_dim=24, global_head_dim=40, sliding_window=16), **gemma4.SHARED
    ),
    "gemma4-keys-only": lambda: gemma4.text_config(
        sizes(96, 6, 3, 160, layers=3, head_dim=32, global_head_dim=48, sliding_window=16), **gemma4.KEYS_ONLY
    ),
    "smollm3": lambda: hf.SmolLM3Config(**sizes(120, 5, 1, 160, layers=4)),
    "smollm3-sliding": lambda: hf.SmolLM3Config(
        **sizes(96, 4, 2, 160, layers=3, sliding_window=16, use_sliding_window=True, no_rope_layer_interval=2),
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    "granite": lambda: hf.GraniteConfig(
        **sizes(120, 5, 1, 160), embedding_multiplier=3.0, residual_multiplier=0.22, **GRANITE
    ),
    "granite4": lambda: hf.GraniteMoeHybridConfig(
        **sizes(96, 6, 2, 40, shared_intermediate_size=160, num_local_experts=0, mamba_n_heads=6),
        layer_types=["attention"] * 2,
        residual_multiplier=0.5,
        **GRANITE,
    ),
    "granite4-rope": lambda: hf.GraniteMoeHybridConfig(
        **sizes(96, 4, 2, 40, shared_intermediate_size=104, num_local_experts=0, mamba_n_heads=6),
        layer_types=["attention"] * 2,
        position_embedding_type="rope",
        attention_bias=True,
    ),
    # Heads that no number of ranks divides, of which all share B, C and a norm.
    "granite4-h": lambda: hf.GraniteMoeHybridConfig(
        **sizes(96, 6, 2, 40, layers=3, shared_intermediate_size=160, num_local_experts=0, mamba_n_heads=8),
        **GRANITE,
        layer_types=["mamba", "attention", "mamba"],
        mamba_d_state=20,
        residual_multiplier=0.5,
    ),
    "ernie4_5": lambda: hf.Ernie4_5Config(**sizes(120, 6, 2, 160, head_dim=24, tie_word_embeddings=False)),
    "hunyuan": lambda: hf.HunYuanDenseV1Config(
        **sizes(120, 5, 1, 160, head_dim=24), **rope("dynamic", alpha=50.0, factor=1.0)
    ),
    "olmo2": lambda: hf.Olmo2Config(**sizes(120, 5, 1, 160)),
    "olmo3": lambda: hf.Olmo3Config(
        **sizes(96, 4, 2, 160, layers=3, sliding_window=16),
        **OLMO3_ROPE,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3_5": lambda: hf.Qwen3_5TextConfig(**sizes(96, 6, 2, 160, layers=4, head_dim=32), **DELTA),
    # Convolutions of 3 and of 7 tokens; MLPs of 136 columns, two thirds of the stated width in multiples of 8.
    "lfm2": lambda: hf.Lfm2Config(
        **sizes(96, 6, 2, 200, layers=4), layer_types=["conv", "full_attention", "conv", "conv"], block_multiple_of=8
    ),
    "lfm2-biases": lambda: hf.Lfm2Config(
        **sizes(120, 5, 1, 160, layers=3, tie_word_embeddings=False),
        layer_types=["conv", "full_attention", "conv"],
        block_auto_adjust_ff_dim=False,
        conv_L_cache=7,
        conv_bias=True,
    ),
    "phi3": lambda: hf.Phi3Config(**sizes(160, 2, 1, 224, original_max_position_embeddings=256), **_LONGROPE),
}
# Widths of experts that are no multiple of a tile; a dense layer between mixtures; windows, which some of these have.
MOE_CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "mixtral": lambda: hf.MixtralConfig(
        **sizes(96, 4, 2, 104, head_dim=24, num_local_experts=5, num_experts_per_tok=2, sliding_window=16)
    ),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **sizes(128, 4, 2, 160, layers=3, moe_intermediate_size=72, shared_expert_intermediate_size=200),
        num_experts=7,
        num_experts_per_tok=3,
        mlp_only_layers=[1],
    ),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(
        **sizes(160, 4, 1, 160, head_dim=32, moe_intermediate_size=96, num_experts=16, num_experts_per_tok=4),
        norm_topk_prob=True,
        tie_word_embeddings=True,
    ),
    "glm4_moe": lambda: hf.Glm4MoeConfig(
        **sizes(96, 6, 2, 160, layers=3, head_dim=32, moe_intermediate_size=72, num_experts_per_tok=3),
        n_routed_experts=12,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "gemma4-experts": lambda: gemma4.text_config(
        sizes(96, 6, 3, 160, layers=3, head_dim=32, global_head_dim=48, sliding_window=16),
        **gemma4.KEYS_ONLY,
        **gemma4.EXPERTS,
    ),
    "minimax_m2": lambda: hf.MiniMaxM2Config(
        **sizes(96, 6, 2, 104, head_dim=32, num_local_experts=7, num_experts_per_tok=3, rotary_dim=16)
    ),
    # Values narrower than keys, and more KV heads in the layers that slide.
    "mimo_v2_flash": lambda: hf.MiMoV2FlashConfig(
        **sizes(96, 6, 3, 160, layers=3, head_dim=48, v_head_dim=40, moe_intermediate_size=72, sliding_window=16),
        n_routed_experts=7,
        num_experts_per_tok=3,
    ),
    # Dense layers between mixtures, a layer without rope; chunks and steps of the scale of queries end within tests.
    "llama4": lambda: hf.Llama4TextConfig(
        **sizes(120, 5, 1, 72, layers=4, head_dim=24, intermediate_size_mlp=160, num_local_experts=5),
        **rope("llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=64),
        **LLAMA4,
        interleave_moe_layer_step=2,
    ),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **sizes(96, 6, 3, 160, layers=3, head_dim=32, moe_intermediate_size=72, shared_expert_intermediate_size=88),
        **DELTA,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        num_experts=7,
        num_experts_per_tok=3,
        mlp_only_layers=[1],
    ),
    "qwen3_5_moe": lambda: hf.Qwen3_5MoeTextConfig(
        **sizes(96, 4, 1, 160, layers=2, head_dim=32, moe_intermediate_size=72, shared_expert_intermediate_size=88),
        **DELTA,
        layer_types=["linear_attention", "full_attention"],
        num_experts=7,
        num_experts_per_tok=3,
    ),
    "granite4-h-moe": lambda: hf.GraniteMoeHybridConfig(
        **sizes(96, 6, 3, 72, shared_intermediate_size=88, num_local_experts=7, num_experts_per_tok=3),
        layer_types=["mamba", "attention"],
        mamba_n_heads=6,
        mamba_n_groups=2,
        mamba_d_state=40,
        mamba_conv_bias=False,
        time_step_limit=(0.6, 0.8),
    ),
    "lfm2_moe": lambda: hf.Lfm2MoeConfig(
        **sizes(96, 6, 2, 160, layers=4, moe_intermediate_size=72, num_experts=7, num_experts_per_tok=3),
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        num_dense_layers=1,
    ),
    # Two mixers in a row, an MLP, and experts in two groups.
    "nemotron_h": lambda: hf.NemotronHConfig(
        **COMMON,
        layers_block_type=["mamba", "moe", "mamba", "attention", "mlp", "mamba", "moe"],
        hidden_size=96,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=24,
        intermediate_size=104,
        ssm_state_size=20,
        mamba_num_heads=6,
        mamba_head_dim=24,
        n_groups=3,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=72,
        moe_shared_expert_intermediate_size=88,
        n_group=2,
        topk_group=1,
        routed_scaling_factor=1.5,
    ),
    "kimi_linear": lambda: hf.KimiLinearConfig(
        **sizes(96, 3, 3, 160, layers=3, kv_lora_rank=64, num_local_experts=8, num_experts_per_tok=3),
        **LATENT_HEADS,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        linear_num_heads=5,
        linear_head_dim=20,
        moe_intermediate_size=72,
        n_group=2,
        topk_group=1,
    ),
    # A limit that is met now and then.
    "gpt_oss": lambda: hf.GptOssConfig(
        **sizes(96, 6, 3, 104, head_dim=32, num_local_experts=5, num_experts_per_tok=2, sliding_window=16),
        **rope("yarn", factor=4.0, original_max_position_embeddings=128, truncate=False),
        swiglu_limit=1.5,
    ),
}
# Heads that no number of ranks divides, a dense layer first, groups of experts of which half can be chosen.
LATENT_CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "deepseek_v2": lambda: hf.DeepseekV2Config(
        **sizes(160, 5, 5, 136, layers=3, q_lora_rank=None, kv_lora_rank=64, n_routed_experts=8, n_shared_experts=2),
        **LATENT_HEADS,
        **rope("yarn", factor=4.0, original_max_position_embeddings=128, mscale=0.707, mscale_all_dim=0.707),
        first_k_dense_replace=1,
        moe_intermediate_size=40,
        num_experts_per_tok=3,
        routed_scaling_factor=1.5,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
    ),
    "deepseek_v3": lambda: hf.DeepseekV3Config(
        **sizes(96, 3, 3, 160, layers=3, q_lora_rank=72, kv_lora_rank=96, n_routed_experts=16, n_shared_experts=1),
        **LATENT_HEADS,
        **rope("yarn", factor=4.0, original_max_position_embeddings=128, mscale=1.0, mscale_all_dim=1.0),
        first_k_dense_replace=1,
        moe_intermediate_size=96,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
    ),
    # More dimensions of values than of keys without positions, and of these more than of rotated ones.
    "glm4_moe_lite": lambda: hf.Glm4MoeLiteConfig(
        **sizes(96, 5, 5, 160, layers=3, q_lora_rank=40, kv_lora_rank=64, n_routed_experts=14, n_shared_experts=1),
        **rope("default", rope_theta=1e6),
        qk_nope_head_dim=96,
        qk_rope_head_dim=32,
        v_head_dim=128,
        first_k_dense_replace=1,
        moe_intermediate_size=72,
        num_experts_per_tok=3,
        routed_scaling_factor=1.75,
    ),
}
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_PATCHES = {"image_size": 28, "patch_size": 14}


def nested(name: str, text: str, *, outer: bool, inner: bool) -> hf.PreTrainedConfig:
    """A multimodal configuration around that of the case `text`; whether the head is tied, as both of them say."""
    within = CASES[text]()
    within.tie_word_embeddings = inner
    return around(name, within, outer=outer)


def around(name: str, within: hf.PreTrainedConfig, *, outer: bool = False) -> hf.PreTrainedConfig:
    """A multimodal configuration around that of a text model."""
    vision = {"gemma3": hf.SiglipVisionConfig, "mistral3": hf.PixtralVisionConfig}[name](**_VISION, **_PATCHES)
    whole = {"gemma3": hf.Gemma3Config, "mistral3": hf.Mistral3Config}[name]
    return whole(text_config=within.to_dict(), vision_config=vision.to_dict(), tie_word_embeddings=outer)


# The text of models that see. The two places that say whether the head is tied contradict each other.
NESTED_CASES: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "gemma3-nested-untied": lambda: nested("gemma3", "gemma3", outer=False, inner=True),
    "gemma3-nested-tied": lambda: nested("gemma3", "gemma3", outer=True, inner=False),
    "mistral3-nested-untied": lambda: nested("mistral3", "mistral", outer=False, inner=True),
    "mistral3-nested-tied": lambda: nested("mistral3", "mistral", outer=True, inner=False),
    "gemma4-nested": lambda: gemma4.around(CASES["gemma4"]()),
    "gemma4-unified": lambda: gemma4.around(
        gemma4.unified_config(sizes(96, 6, 3, 160, layers=3, head_dim=32, global_head_dim=48, sliding_window=16))
    ),
    "mistral4": lambda: around(
        "mistral3",
        hf.Mistral4Config(
            **sizes(96, 6, 6, 160, layers=2, q_lora_rank=40, kv_lora_rank=64, n_routed_experts=12, n_shared_experts=1),
            **LATENT_HEADS,
            **rope("yarn", factor=4.0, original_max_position_embeddings=24, **_MINISTRAL),
            moe_intermediate_size=72,
            num_experts_per_tok=4,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=1.5,
        ),
    ),
    "kimi_k25": lambda: kimi.kimi_around(
        hf.DeepseekV3Config(
            **sizes(128, 4, 4, 160, layers=3, q_lora_rank=48, kv_lora_rank=64, n_routed_experts=20, n_shared_experts=1),
            **LATENT_HEADS,
            **rope("yarn", factor=64.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0),
            rms_norm_eps=1e-5,
            first_k_dense_replace=1,
            moe_intermediate_size=72,
            num_experts_per_tok=4,
            n_group=1,
            topk_group=1,
            routed_scaling_factor=2.827,
            num_nextn_predict_layers=0,
        )
    ),
}
_UNIT = (  # about one
    "norm.weight",
    "layernorm_1.weight",
    "layernorm_2.weight",
    "layer_norm1.weight",
    "layer_norm2.weight",
    "router.scale",
    "per_expert_scale",
)
_K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
_GRIDS = ("IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S")
GGUF_BLOCKS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *_K_QUANTS, "IQ4_NL", "IQ4_XS", "MXFP4", *_GRIDS)
GGUF_TYPES = ("F32", "F16", "BF16", *GGUF_BLOCKS)


# By configuration and seed: to make a model takes ten times as long as to copy it, and tests want hundreds of few.
_BUILT: dict[tuple[str, int], hf.PreTrainedModel] = {}


def random_model(case: str, seed: int = 0) -> hf.PreTrainedModel:
    """A model of one of the tables of cases in fp32 whose weights are random bf16 values."""
    return build((CASES | MOE_CASES | LATENT_CASES | NESTED_CASES)[case](), seed)


def build(config: hf.PreTrainedConfig, seed: int = 0) -> hf.PreTrainedModel:
    """The same for another configuration."""
    key = (config.to_json_string(use_diff=False), seed)
    if key not in _BUILT:
        model = model_class(config).from_config(config, dtype=torch.float32, attn_implementation="eager")
        _BUILT[key] = randomise(_recurrent(model.eval()), seed)
    return copy.deepcopy(_BUILT[key])


def _recurrent(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """Let models with gated delta networks compute token by token, as is done here, not by solving a system of
    equations for each chunk."""
    code = sys.modules[type(model).__module__]
    for rule in ("torch_{}_gated_delta_rule", "{}_kimi_delta_attention"):
        if hasattr(code, rule.format("chunk")):
            setattr(code, rule.format("chunk"), getattr(code, rule.format("recurrent")))
    return model


def model_class(config: hf.PreTrainedConfig) -> type[Any]:
    """Return transformers' class for models of this configuration."""
    is_nested = hasattr(config, "vision_config")
    return hf.AutoModelForImageTextToText if is_nested else hf.AutoModelForCausalLM


def architecture(config: hf.PreTrainedConfig) -> str:
    """Return the name of that class."""
    return model_class(config)._model_mapping[type(config)].__name__


def randomise(model: hf.PreTrainedModel, seed: int = 0) -> hf.PreTrainedModel:
    """Give a model random bf16 values, spread so that its predictions are neither flat nor certain."""
    generator = torch.Generator().manual_seed(seed)
    is_centred_model = model.config.model_type.startswith(CENTRED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(".sinks"):
                value = noise
            elif parameter.ndim == 1 or name.endswith("_bias"):
                is_centred = is_centred_model and not name.endswith("linear_attn.norm.weight")
                is_unit_norm = name.endswith(_UNIT) and not is_centred
                value = 0.2 * noise + (1.0 if is_unit_norm else 0.0)
            elif "embed_tokens_per_layer" in name:
                value = 0.2 * noise
            elif "embed_tokens" in name:
                # More, and a tied head would predict the token it was given. Gemma multiplies by sqrt(hidden size).
                value = (0.03 if model.config.model_type.startswith("gemma") else 0.08) * noise
            else:
                is_turned = model.config.model_type in TURNED and parameter.ndim == 3
                inputs = parameter.shape[1 if is_turned else -1] if parameter.ndim < 4 else parameter[0].numel()
                value = noise * 1.5 * inputs**-0.5
            parameter.copy_(value.to(torch.bfloat16).float())
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                noise = 0.1 * torch.randn(buffer.shape, generator=generator)
                buffer.copy_((noise + name.endswith("layer_scalar")).to(torch.bfloat16).float())
    return model


def save(model: hf.PreTrainedModel, folder: Path, *, sharded: bool = False) -> Path:
    """Save a model as bf16 safetensors, in one file or in several with an index."""
    count("checkpoints")
    # A copy: casting the model itself to bf16 and back would round its rope frequencies too.
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    rounded.save_pretrained(folder, max_shard_size="100KB" if sharded else "1GB")
    if model.config.model_type == "kimi_k25":
        kimi.publish_k25(folder)
    if model.config.model_type == "kimi_linear":
        kimi.publish_linear(folder)
    if model.config.model_type.startswith("gemma4") and not sharded:
        gemma4.save_as_published(folder)
    return folder


save_gguf = gguf_models.save_gguf
