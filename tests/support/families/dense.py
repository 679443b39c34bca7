"""Families without experts."""

import transformers as hf

from tests.support import gemma4
from tests.support.families.row import (
    BLOCKS,
    DELTA,
    GRANITE,
    HYBRID_BLOCKS,
    MINISTRAL,
    OLMO3_ROPE,
    VOCAB,
    Row,
    rope,
    sizes,
)

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

DENSE = {
    "llama-tied": Row(hf.LlamaConfig, sizes(576, 9, 3, 416, tie_word_embeddings=True), gguf={}),
    "llama-untied": Row(hf.LlamaConfig, sizes(96, 4, 2, 164, head_dim=24)),
    "llama3-rope": Row(hf.LlamaConfig, sizes(96, 3, 1, 160, head_dim=32, attention_bias=True) | _LLAMA3),
    "llama-linear-rope": Row(hf.LlamaConfig, sizes(96, 2, 2, 96, head_dim=48) | _LINEAR),
    "llama-yarn": Row(hf.LlamaConfig, sizes(128, 4, 4, 224) | _YARN),
    "mistral": Row(hf.MistralConfig, sizes(256, 8, 2, 352, sliding_window=16)),
    "ministral3": Row(
        hf.Ministral3Config,
        sizes(96, 6, 2, 160, head_dim=24) | rope("yarn", factor=4.0, original_max_position_embeddings=24, **MINISTRAL),
        gguf={},
    ),
    "qwen2": Row(hf.Qwen2Config, sizes(192, 6, 3, 256), gguf={}),
    "qwen3": Row(hf.Qwen3Config, sizes(128, 4, 2, 224, head_dim=64, tie_word_embeddings=True), gguf={}),
    "gemma2": Row(
        hf.Gemma2Config,
        sizes(144, 6, 3, 192, head_dim=48, sliding_window=16, query_pre_attn_scalar=24, attn_logit_softcapping=5.0)
        | {"final_logit_softcapping": 4.0},
        gguf={"query_pre_attn_scalar": 48},
    ),
    "gemma3": Row(
        hf.Gemma3TextConfig,
        sizes(128, 4, 1, 160, layers=3, head_dim=32, sliding_window=16, query_pre_attn_scalar=32)
        | _GEMMA3_ROPE
        | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    ),
    "gemma4": Row(
        gemma4.text_config,
        {"sizes": sizes(120, 5, 1, 160, layers=7, head_dim=24, global_head_dim=40, sliding_window=16), **gemma4.SHARED},
        gguf={},
        blocks=BLOCKS
        | gemma4.SHARED
        | {
            "vocab_size_per_layer_input": VOCAB,
            "final_logit_softcapping": 30.0,
            "num_hidden_layers": 7,
            "global_head_dim": 128,
            "sliding_window": 16,
            "hidden_size_per_layer_input": 128,
        },
        expands=("embed_tokens_per_layer",),
        published=(),
    ),
    "gemma4-keys-only": Row(
        gemma4.text_config,
        {
            "sizes": sizes(96, 6, 3, 160, layers=3, head_dim=32, global_head_dim=48, sliding_window=16),
            **gemma4.KEYS_ONLY,
        },
        gguf={},
    ),
    "smollm3": Row(hf.SmolLM3Config, sizes(120, 5, 1, 160, layers=4), gguf={}),
    "smollm3-sliding": Row(
        hf.SmolLM3Config,
        sizes(96, 4, 2, 160, layers=3, sliding_window=16, use_sliding_window=True, no_rope_layer_interval=2)
        | {"attention_bias": True, "tie_word_embeddings": False},
    ),
    "granite": Row(
        hf.GraniteConfig,
        sizes(120, 5, 1, 160) | GRANITE | {"embedding_multiplier": 3.0, "residual_multiplier": 0.22},
        gguf={},
    ),
    "granite4": Row(
        hf.GraniteMoeHybridConfig,
        sizes(96, 6, 2, 40, shared_intermediate_size=160, num_local_experts=0, mamba_n_heads=6)
        | GRANITE
        | {"layer_types": ["attention"] * 2, "residual_multiplier": 0.5},
    ),
    "granite4-rope": Row(
        hf.GraniteMoeHybridConfig,
        sizes(96, 4, 2, 40, shared_intermediate_size=104, num_local_experts=0, mamba_n_heads=6)
        | {"layer_types": ["attention"] * 2, "position_embedding_type": "rope", "attention_bias": True},
    ),
    # Heads that no number of ranks divides, of which all share B, C and a norm.
    "granite4-h": Row(
        hf.GraniteMoeHybridConfig,
        sizes(96, 6, 2, 40, layers=3, shared_intermediate_size=160, num_local_experts=0, mamba_n_heads=8)
        | GRANITE
        | {"layer_types": ["mamba", "attention", "mamba"], "mamba_d_state": 20, "residual_multiplier": 0.5},
        gguf={},
        blocks=BLOCKS
        | {
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 256,
            "mamba_n_heads": 4,
            "mamba_d_state": 64,
        },
        published=(),
    ),
    "ernie4_5": Row(hf.Ernie4_5Config, sizes(120, 6, 2, 160, head_dim=24, tie_word_embeddings=False), gguf={}),
    "hunyuan": Row(
        hf.HunYuanDenseV1Config, sizes(120, 5, 1, 160, head_dim=24) | rope("dynamic", alpha=50.0, factor=1.0), gguf={}
    ),
    "olmo2": Row(hf.Olmo2Config, sizes(120, 5, 1, 160), gguf={}),
    "olmo3": Row(
        hf.Olmo3Config,
        sizes(96, 4, 2, 160, layers=3, sliding_window=16)
        | OLMO3_ROPE
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        gguf={},
    ),
    "qwen3_5": Row(
        hf.Qwen3_5TextConfig,
        sizes(96, 6, 2, 160, layers=4, head_dim=32) | DELTA,
        gguf={},
        blocks=HYBRID_BLOCKS,
        expands=("in_proj_a", "in_proj_b"),
        published=("in_proj_a", "in_proj_b", "conv1d"),
    ),
    # Convolutions of 3 and of 7 tokens; MLPs of 136 columns, two thirds of the stated width in multiples of 8.
    "lfm2": Row(
        hf.Lfm2Config,
        sizes(96, 6, 2, 200, layers=4)
        | {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 8},
        gguf={},
        blocks=BLOCKS | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    "lfm2-biases": Row(
        hf.Lfm2Config,
        sizes(120, 5, 1, 160, layers=3, tie_word_embeddings=False)
        | {
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 7,
            "conv_bias": True,
        },
        blocks=BLOCKS
        | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "conv_bias": True},
        published=(),
    ),
    "phi3": Row(hf.Phi3Config, sizes(160, 2, 1, 224, original_max_position_embeddings=256) | _LONGROPE),
}
