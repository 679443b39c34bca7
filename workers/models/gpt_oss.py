"""gpt-oss: experts in every layer, attention sinks, every second layer sliding.

All experts of a layer lie in one tensor, with gate and up rows alternating. Every linear part has a bias.
"""

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_experts import SOFTMAX_OF_CHOSEN, expert_values
from numaserve.workers.models.config.huggingface import (
    read_biases,
    read_common,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
    windows_of,
)
from numaserve.workers.models.config.rope import read_rope
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.experts import Routing

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_DEFAULTS = {
    "head_dim": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "rope_parameters": _ROPE,
}
_SIGMOID_GAIN = 1.702  # the kernels' too
_NAMES = ExpertNames(
    router="mlp.router", each=MlpNames("gate_up_proj", "gate_up_proj", "down_proj", interleaved=True), stacked="turned"
)


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("swiglu_alpha", _SIGMOID_GAIN)
    common = read_common(fields)
    slides = read_layer_kinds(fields, [layer % 2 == 0 for layer in range(read_layer_count(fields))])
    windows = windows_of(slides, read_sliding_window(fields, default=128))
    rotation = Rotation(read_rope(fields, common.head_dim, default_theta=150000.0))
    biases = read_biases(fields, default=True)
    num_experts, top_k = read_experts(fields, "num_local_experts")
    limit = fields.number("swiglu_limit", 1e-3, 1e6, 7.0)
    routing = Routing(num_experts=num_experts, top_k=top_k)

    def block(layer: int) -> Block:
        at = f"layers.{layer}."
        mask = Mask(windows[layer], sinks=common.sinks(layer))
        attention = common.attention(layer, rotation=rotation, mask=mask, biases=biases)
        experts = Experts(
            at,
            common.hidden,
            routing,
            common.intermediate,
            activation="swiglu_oai",
            limit=limit,
            router_bias=True,
            expert_bias=True,
            names=_NAMES,
        )
        # GGUF files call this norm one after attention.
        mlp_norm = common.norm(f"{at}post_attention_layernorm", f"{at}post_attention_norm")
        return common.block(layer, attention, experts, mlp_norm=mlp_norm)

    return common.model("gpt_oss", architecture, block)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    found = expert_values(metadata, values, renormalized=True, gating=(SOFTMAX_OF_CHOSEN,))
    name = metadata.text("general.architecture")
    width = metadata.values.get(f"{name}.expert_feed_forward_length", values.get("intermediate_size"))
    return {**found, "intermediate_size": width}


FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    configure=configure,
    # Without truncation, as the model was trained; the file does not say.
    gguf=GgufForm("gpt-oss", values=_gguf_values, rope=lambda metadata: {"truncate": False}),
)
