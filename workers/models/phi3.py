"""Phi-3 and Phi-4-mini: fused qkv and gate-up projections, longrope."""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import read_common, read_windows
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import RopeKind

# Early checkpoints say "su" and "yarn" where longrope is meant.
_ROPE_KINDS: dict[str, RopeKind] = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}
_QKV, _GATE_UP = "self_attn.qkv_proj", "mlp.gate_up_proj"
_ATTENTION = AttentionNames(q=_QKV, k=_QKV, v=_QKV)
_MLP = MlpNames(gate=_GATE_UP, up=_GATE_UP)


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(rms_norm_eps=1e-5)
    common = read_common(fields)
    windows = read_windows(fields)
    rotation = Rotation(read_rope(fields, common.head_dim, kinds=_ROPE_KINDS))

    def block(layer: int) -> Block:
        attention = common.attention(layer, rotation=rotation, mask=Mask(windows[layer]), names=_ATTENTION)
        return common.block(layer, attention, common.mlp(layer, names=_MLP))

    return common.model("phi3", architecture, block)


FAMILY = Family(name="phi3", architectures=("Phi3ForCausalLM",), configure=configure, gguf=GgufForm("phi3"))
