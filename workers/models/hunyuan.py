"""Hunyuan, dense: Llama with an RMS norm on each query and key head after it is rotated."""

from dataclasses import replace

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import Common, read_biases, read_common
from numaserve.workers.models.config.rope import read_rope, rope_fields
from numaserve.workers.models.family import Family, GgufForm, without_experts
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import RopeConfig

_NORMS = ("self_attn.query_layernorm", "self_attn.key_layernorm")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    common = read_common(fields.with_defaults(rms_norm_eps=1e-5))
    biases = read_biases(fields)
    rotation = Rotation(_read_rope(common))

    def block(layer: int) -> Block:
        norms = common.head_norms(layer, *_NORMS, after_rotation=True)
        return common.block(layer, common.attention(layer, norms=norms, rotation=rotation, biases=biases))

    return common.model("hunyuan", architecture, block)


def _read_rope(common: Common) -> RopeConfig:
    """Return the rope. Despite its name, "dynamic" is the same for every length: `alpha` widens the base (NTK-aware
    scaling)."""
    scaling = rope_fields(common.fields)
    if "dynamic" not in (scaling.values.get("rope_type"), scaling.values.get("type")):
        return common.rope
    rope = read_rope(common.fields, common.head_dim, kinds={"dynamic": "default"})
    alpha = scaling.number("alpha", 1e-3, 1e6)
    return replace(rope, theta=rope.theta * alpha ** (rope.rotary_dim / (rope.rotary_dim - 2)))


FAMILY = Family(
    name="hunyuan",
    architectures=("HunYuanDenseV1ForCausalLM",),
    configure=configure,
    gguf=GgufForm("hunyuan-dense", values=without_experts),
)
