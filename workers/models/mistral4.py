"""Mistral Small 4: DeepSeek-V2's latent attention, experts chosen by softmax, all of a layer in one tensor.

Multimodal checkpoints have Pixtral's vision tower, and another class (`mistral.py`).
"""

from dataclasses import replace

from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config import gguf_deepseek
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MULTIMODAL, read_text
from numaserve.workers.models.config.latent import EXPERT_NAMES, LATENT_DEFAULTS, read_deepseek, read_groups
from numaserve.workers.models.config.pixtral import PIXTRAL_PROJECTOR, read_pixtral_images, seeing_pixtral
from numaserve.workers.models.config.rope import rope_fields
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_DEFAULTS = LATENT_DEFAULTS | {
    "q_lora_rank": 1024,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "max_position_embeddings": 1048576,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "rope_parameters": _ROPE,
}
_NAMES = replace(EXPERT_NAMES, each=MlpNames("gate_up_proj", "gate_up_proj", "down_proj"), stacked="in order")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, of the text model or of a multimodal one that holds it as `text_config`; what it leaves out has
    transformers' default."""
    if not fields.has("text_config"):
        return _configure_text(fields, architecture)
    return seeing_pixtral(replace(_configure_text(read_text(fields), architecture), **MULTIMODAL), fields)


def _configure_text(fields: Fields, architecture: str) -> ModelConfig:
    fields = _with_whole_rotation(fields.with_defaults(**_DEFAULTS))
    return read_deepseek(
        fields,
        "mistral4",
        architecture,
        pairs=fields.flag("rope_interleave", True),
        names=_NAMES,
        renormalize=fields.flag("norm_topk_prob", True),
        group_score="top2",
        **read_groups(fields),
    )


def _with_whole_rotation(fields: Fields) -> Fields:
    """Return the fields without the rotated share of a head, which is `qk_rope_head_dim` in other words."""
    rope = {key: value for key, value in rope_fields(fields).values.items() if key != "partial_rotary_factor"}
    return fields.with_values(rope_parameters=rope, rope_scaling=None, partial_rotary_factor=None)


def _gguf_rope(metadata: Fields) -> Values:
    scale = metadata.optional_number("mistral4.attention.temperature_scale", 0.0, 1e3)
    return {**gguf_deepseek.mscale(metadata), "llama_4_scaling_beta": scale}


FAMILY = Family(
    name="mistral4",
    architectures=("Mistral4ForCausalLM",),
    configure=configure,
    gguf=GgufForm(
        "mistral4",
        values=gguf_deepseek.latent_values,
        rope=_gguf_rope,
        equal_value_length=False,
        projectors=("", PIXTRAL_PROJECTOR),
    ),
    images=read_pixtral_images,
    needs_processor=False,
)
