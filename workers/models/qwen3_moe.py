"""Qwen3-MoE: Qwen3 with experts."""

from functools import partial

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import ExpertNames
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.models.config.experts import read_qwen_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import expert_values
from numaserve.workers.models.config.huggingface import read_biases, read_common, read_sliding_window
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig

_DEFAULTS = {"num_key_value_heads": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 768}


def configure(fields: Fields, architecture: str, *, names: ExpertNames = ExpertNames()) -> ModelConfig:  # noqa: B008
    """Map config.json; what it leaves out has transformers' default. `names` are those of experts' tensors."""
    fields = fields.with_defaults(**_DEFAULTS)
    common = read_common(fields)
    experts_of = read_qwen_experts(common, names=names)
    # On every layer: `max_window_layers` counts in Qwen3 only.
    mask = Mask(read_sliding_window(fields, default=4096) if fields.flag("use_sliding_window", False) else None)
    biases = read_biases(fields)

    def block(layer: int) -> Block:
        attention = common.attention(layer, norms=common.head_norms(layer), mask=mask, biases=biases)
        return common.block(layer, attention, experts_of(layer))

    return common.model("qwen3_moe", architecture, block)


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    configure=configure,
    # Without the tower, Qwen3-VL-MoE is Qwen3-MoE.
    gguf=GgufForm("qwen3moe", values=partial(expert_values, renormalized=True), others=("qwen3vlmoe",)),
)
