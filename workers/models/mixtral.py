"""Mixtral: Mistral whose layers are all mixtures of experts."""

from functools import partial

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import expert_values, has_experts
from numaserve.workers.models.config.huggingface import read_common, read_windows
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.experts import Routing

_DEFAULTS = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2}
_NAMES = ExpertNames(
    router="block_sparse_moe.gate", experts="block_sparse_moe.experts", each=MlpNames(gate="w1", up="w3", down="w2")
)


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    common = read_common(fields)
    windows = read_windows(fields)
    rotation = Rotation(read_rope(fields, common.head_dim, default_theta=1e6))
    num_experts, top_k = read_experts(fields, "num_local_experts")
    routing = Routing(num_experts=num_experts, top_k=top_k)

    def block(layer: int) -> Block:
        experts = Experts(f"layers.{layer}.", common.hidden, routing, common.intermediate, names=_NAMES)
        attention = common.attention(layer, rotation=rotation, mask=Mask(windows[layer]))
        return common.block(layer, attention, experts)

    return common.model("mixtral", architecture, block)


FAMILY = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    configure=configure,
    gguf=GgufForm("llama", accepts=has_experts, values=partial(expert_values, renormalized=True), pairs=True),
)
