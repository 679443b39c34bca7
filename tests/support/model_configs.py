"""Configurations of models without a checkpoint."""

from __future__ import annotations

from numaserve.workers.models.spec import ModelConfig, MoeConfig, RopeConfig


def model_config(**changes: object) -> ModelConfig:
    """The shape of SmolLM2-135M, whose 9 query heads and 3 KV heads do not divide by 2, with `changes`."""
    values: dict[str, object] = {
        "architecture": "LlamaForCausalLM",
        "family": "llama",
        "hidden_size": 576,
        "num_layers": 30,
        "num_qo_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "rms_norm_eps": 1e-5,
        "max_position": 8192,
        "tie_word_embeddings": True,
        "activation": "silu",
        "rope": RopeConfig(rotary_dim=64),
        "layer_kinds": ("full",) * 30,
        "query_scale": 0.125,
    }
    return ModelConfig(**values | changes)  # type: ignore[arg-type]


def moe_config(**changes: object) -> ModelConfig:
    """Every layer but the first has 12 experts of 768, top 4, and a shared one of 1024 with a gate."""
    moe = MoeConfig(12, 4, 768, shared_intermediate_size=1024, shared_gate=True)
    return model_config(family="qwen2_moe", moe=moe, moe_layers=tuple(range(1, 30)), **changes)
