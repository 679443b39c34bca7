"""Families with experts, and with latents. Widths of experts are no multiple of a tile; some have a dense layer between
mixtures, or windows."""

import math

import transformers as hf

from tests.support import gemma4
from tests.support.families.row import (
    BLOCKS,
    COMMON,
    DELTA,
    EXPERT_BLOCKS,
    HYBRID_BLOCKS,
    LATENT_HEADS,
    LLAMA4,
    VOCAB,
    Row,
    rope,
    sizes,
)

_NEMOTRON_BLOCKS = EXPERT_BLOCKS | {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "ssm_state_size": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "n_routed_experts": 4,
    "moe_shared_expert_intermediate_size": 256,
}
_KIMI_BLOCKS = (
    EXPERT_BLOCKS
    | LATENT_HEADS
    | {
        "kv_lora_rank": 64,
        "num_key_value_heads": 4,
        "num_local_experts": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
        "linear_num_heads": 4,
        "linear_head_dim": 64,
    }
)

EXPERTS = {
    "mixtral": Row(
        hf.MixtralConfig,
        sizes(96, 4, 2, 104, head_dim=24, num_local_experts=5, num_experts_per_tok=2, sliding_window=16),
        gguf={"sliding_window": None},
        blocks=BLOCKS | {"num_local_experts": 5, "num_experts_per_tok": 5},
        tensors=("model.layers.0.block_sparse_moe.experts.3.w1.weight",),
    ),
    "qwen2_moe": Row(
        hf.Qwen2MoeConfig,
        sizes(128, 4, 2, 160, layers=3, moe_intermediate_size=72, shared_expert_intermediate_size=200)
        | {"num_experts": 7, "num_experts_per_tok": 3, "mlp_only_layers": [1]},
        gguf={"mlp_only_layers": []},
        blocks=BLOCKS | EXPERT_BLOCKS,
        published=(),
    ),
    "qwen3_moe": Row(
        hf.Qwen3MoeConfig,
        sizes(160, 4, 1, 160, head_dim=32, moe_intermediate_size=96, num_experts=16, num_experts_per_tok=4)
        | {"norm_topk_prob": True, "tie_word_embeddings": True},
        gguf={},
        blocks=BLOCKS | EXPERT_BLOCKS,
    ),
    "glm4_moe": Row(
        hf.Glm4MoeConfig,
        sizes(96, 6, 2, 160, layers=3, head_dim=32, moe_intermediate_size=72, num_experts_per_tok=3)
        | {
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
        gguf={},
    ),
    "gemma4-experts": Row(
        gemma4.text_config,
        {
            "sizes": sizes(96, 6, 3, 160, layers=3, head_dim=32, global_head_dim=48, sliding_window=16),
            **gemma4.KEYS_ONLY,
            **gemma4.EXPERTS,
        },
        gguf={},
        blocks=BLOCKS
        | gemma4.KEYS_ONLY
        | gemma4.EXPERTS
        | {
            "vocab_size_per_layer_input": VOCAB,
            "final_logit_softcapping": 30.0,
            "num_hidden_layers": 3,
            "global_head_dim": 128,
            "sliding_window": 16,
            "hidden_size_per_layer_input": 0,
            "moe_intermediate_size": 256,
            "top_k_experts": 7,  # all: rounding chooses no others
        },
        expands=("proj",),  # of routers
        published=("router.proj",),
    ),
    "minimax_m2": Row(
        hf.MiniMaxM2Config,
        sizes(96, 6, 2, 104, head_dim=32, num_local_experts=7, num_experts_per_tok=3, rotary_dim=16),
        gguf={},
    ),
    # Values narrower than keys, and more KV heads in the layers that slide.
    "mimo_v2_flash": Row(
        hf.MiMoV2FlashConfig,
        sizes(96, 6, 3, 160, layers=3, head_dim=48, v_head_dim=40, moe_intermediate_size=72, sliding_window=16)
        | {"n_routed_experts": 7, "num_experts_per_tok": 3},
        gguf={},
        blocks=BLOCKS
        | EXPERT_BLOCKS
        | {"n_routed_experts": 4, "head_dim": 192, "v_head_dim": 128, "sliding_window": 16},
    ),
    # Dense layers between mixtures, a layer without rope; chunks and steps of the scale of queries end within tests.
    "llama4": Row(
        hf.Llama4TextConfig,
        sizes(120, 5, 1, 72, layers=4, head_dim=24, intermediate_size_mlp=160, num_local_experts=5)
        | rope("llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=64)
        | LLAMA4
        | {"interleave_moe_layer_step": 2},
    ),
    "qwen3_next": Row(
        hf.Qwen3NextConfig,
        sizes(96, 6, 3, 160, layers=3, head_dim=32, moe_intermediate_size=72, shared_expert_intermediate_size=88)
        | DELTA
        | {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "mlp_only_layers": [1],
        },
        gguf={"mlp_only_layers": []},
        blocks=HYBRID_BLOCKS | EXPERT_BLOCKS,
        expands=("in_proj_ba",),
    ),
    "qwen3_5_moe": Row(
        hf.Qwen3_5MoeTextConfig,
        sizes(96, 4, 1, 160, layers=2, head_dim=32, moe_intermediate_size=72, shared_expert_intermediate_size=88)
        | DELTA
        | {"layer_types": ["linear_attention", "full_attention"], "num_experts": 7, "num_experts_per_tok": 3},
        gguf={},
        blocks=HYBRID_BLOCKS | EXPERT_BLOCKS,
        expands=("in_proj_a", "in_proj_b"),
        published=("in_proj_a", "in_proj_b", "conv1d"),
        tensors=("model.layers.1.mlp.experts.3.up_proj.weight",),
    ),
    "granite4-h-moe": Row(
        hf.GraniteMoeHybridConfig,
        sizes(96, 6, 3, 72, shared_intermediate_size=88, num_local_experts=7, num_experts_per_tok=3)
        | {
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 6,
            "mamba_n_groups": 2,
            "mamba_d_state": 40,
            "mamba_conv_bias": False,
            "time_step_limit": (0.6, 0.8),
        },
        gguf={"time_step_limit": (0.0, math.inf)},
        tensors=("model.layers.0.block_sparse_moe.input_linear.weight",),
    ),
    "lfm2_moe": Row(
        hf.Lfm2MoeConfig,
        sizes(96, 6, 2, 160, layers=4, moe_intermediate_size=72, num_experts=7, num_experts_per_tok=3)
        | {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_dense_layers": 1},
        gguf={},
        blocks=BLOCKS | EXPERT_BLOCKS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
        published=(),
    ),
    # Two mixers in a row, an MLP, and experts in two groups.
    "nemotron_h": Row(
        hf.NemotronHConfig,
        COMMON
        | {
            "layers_block_type": ["mamba", "moe", "mamba", "attention", "mlp", "mamba", "moe"],
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "intermediate_size": 104,
            "ssm_state_size": 20,
            "mamba_num_heads": 6,
            "mamba_head_dim": 24,
            "n_groups": 3,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 72,
            "moe_shared_expert_intermediate_size": 88,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
        },
        gguf={"n_group": 1, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
        blocks=BLOCKS | _NEMOTRON_BLOCKS,
        expands=("embeddings",),
        tensors=(
            "backbone.embeddings.weight",
            "backbone.norm_f.weight",
            "backbone.layers.1.mixer.experts.3.up_proj.weight",
        ),
    ),
    "kimi_linear": Row(
        hf.KimiLinearConfig,
        sizes(96, 3, 3, 160, layers=3, kv_lora_rank=64, num_local_experts=8, num_experts_per_tok=3)
        | LATENT_HEADS
        | {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "linear_num_heads": 5,
            "linear_head_dim": 20,
            "moe_intermediate_size": 72,
            "n_group": 2,
            "topk_group": 1,
        },
        gguf={"linear_num_heads": 3, "n_group": 1},
        blocks=BLOCKS | _KIMI_BLOCKS,
        expands=(
            "b_proj",
            "f_a_proj",
            "f_b_proj",
            "g_a_proj",
        ),
        tensors=(
            "model.layers.0.self_attn.q_conv1d.weight",
            "model.layers.0.self_attn.dt_bias",
            "model.layers.1.block_sparse_moe.experts.7.w3.weight",
        ),
    ),
    # A limit that is met now and then.
    "gpt_oss": Row(
        hf.GptOssConfig,
        sizes(96, 6, 3, 104, head_dim=32, num_local_experts=5, num_experts_per_tok=2, sliding_window=16)
        | rope("yarn", factor=4.0, original_max_position_embeddings=128, truncate=False)
        | {"swiglu_limit": 1.5},
        tensors=("model.layers.0.mlp.experts.gate_up_proj",),
    ),
}
# Heads that no number of ranks divides, a dense layer first, groups of experts of which half can be chosen.
LATENTS = {
    "deepseek_v2": Row(
        hf.DeepseekV2Config,
        sizes(160, 5, 5, 136, layers=3, q_lora_rank=None, kv_lora_rank=64, n_routed_experts=8, n_shared_experts=2)
        | LATENT_HEADS
        | rope("yarn", factor=4.0, original_max_position_embeddings=128, mscale=0.707, mscale_all_dim=0.707)
        | {
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 40,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 1.5,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
        },
        gguf={},
    ),
    "deepseek_v3": Row(
        hf.DeepseekV3Config,
        sizes(96, 3, 3, 160, layers=3, q_lora_rank=72, kv_lora_rank=96, n_routed_experts=16, n_shared_experts=1)
        | LATENT_HEADS
        | rope("yarn", factor=4.0, original_max_position_embeddings=128, mscale=1.0, mscale_all_dim=1.0)
        | {
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 96,
            "num_experts_per_tok": 4,
            "n_group": 4,
            "topk_group": 2,
        },
        gguf={},
    ),
    # More dimensions of values than of keys without positions, and of these more than of rotated ones.
    "glm4_moe_lite": Row(
        hf.Glm4MoeLiteConfig,
        sizes(96, 5, 5, 160, layers=3, q_lora_rank=40, kv_lora_rank=64, n_routed_experts=14, n_shared_experts=1)
        | rope("default", rope_theta=1e6)
        | {
            "qk_nope_head_dim": 96,
            "qk_rope_head_dim": 32,
            "v_head_dim": 128,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 72,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 1.75,
        },
        gguf={},
    ),
}
