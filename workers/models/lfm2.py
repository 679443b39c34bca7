"""LFM2 and LFM2.5, dense: gated short convolutions in most layers, attention with q/k norms in the others."""

from collections.abc import Callable
from math import ceil

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.mixers.attention import AttentionNames
from numaserve.workers.layers.mixers.short_conv import ShortConv
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_heads import heads_values
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    Common,
    read_common,
    read_layer_count,
    read_layer_kinds,
)
from numaserve.workers.models.family import Family, GgufForm, Values, without_experts
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.caches import MAX_CONV_TAPS

_DEFAULTS = {
    "num_key_value_heads": 8,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "conv_L_cache": 3,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
}
_RENAMED = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
NAMES = MlpNames("feed_forward.w1", "feed_forward.w3", "feed_forward.w2")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    common = read_lfm(fields)
    width = _read_width(common.fields)
    return lfm(common, "lfm2", architecture, lambda layer: common.mlp(layer, intermediate=width, names=NAMES))


def read_lfm(fields: Fields) -> Common:
    """Return the common fields, of which some have names of their own."""
    renamed = {new: fields.values[old] for old, new in _RENAMED.items() if fields.has(old)}
    fields = fields.with_values(**renamed).with_defaults(**_DEFAULTS)
    return read_common(fields.with_values(rms_norm_eps=fields.values["norm_eps"]))


def lfm(common: Common, family: str, architecture: str, mlp_of: Callable[[int], FeedForward]) -> ModelConfig:
    """Return a model of convolutions and of attention. Raises `OperatorError` if no layer has attention."""
    fields = common.fields
    are_short, taps = _read_short(fields), fields.integer("conv_L_cache", 2, MAX_CONV_TAPS)
    biases = fields.flag("conv_bias", False)

    def block(layer: int) -> Block:
        at = f"layers.{layer}."
        norms = common.head_norms(layer, "self_attn.q_layernorm", "self_attn.k_layernorm")
        attention = common.attention(layer, norms=norms, names=AttentionNames(o="self_attn.out_proj"))
        return common.block(
            layer,
            ShortConv(at, common.hidden, taps, biases) if are_short[layer] else attention,
            mlp_of(layer),
            input_norm=common.norm(f"{at}operator_norm", f"{at}attn_norm"),
            mlp_norm=common.norm(f"{at}ffn_norm", f"{at}ffn_norm"),
        )

    return common.model(family, architecture, block, norm=common.norm("embedding_norm", "token_embd_norm"))


def lfm_values(metadata: Fields, values: Values) -> dict[str, object]:
    """Return the fields of config.json for a GGUF file."""
    name = metadata.text("general.architecture")
    return {
        **heads_values(metadata, "conv"),
        "conv_L_cache": metadata.values.get(f"{name}.shortconv.l_cache"),
        "norm_eps": values.get("rms_norm_eps"),
        "block_auto_adjust_ff_dim": False,
    }


def _read_short(fields: Fields) -> list[bool]:
    """Return whether each layer has a convolution."""
    count = read_layer_count(fields)
    listed = fields.integers("full_attn_idxs", 0, MAX_LAYERS)
    attends = set(listed if fields.has("full_attn_idxs") else range(count))
    are_short = read_layer_kinds(fields, [layer not in attends for layer in range(count)], name="conv")
    if all(are_short):
        raise fields.error(f"all {count} layers are of kind conv; at least one layer must be of kind full_attention")
    return are_short


def _read_width(fields: Fields) -> int:
    """Return the width of MLPs: two thirds of the stated one, unless the file says otherwise."""
    width = fields.integer("intermediate_size", 1, MAX_INTERMEDIATE)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    factor = fields.number("block_ffn_dim_multiplier", 1e-3, 1e3)
    unit = fields.integer("block_multiple_of", 1, MAX_INTERMEDIATE)
    return unit * ceil(int(factor * int(2 * width / 3)) / unit)


def _gguf_values(metadata: Fields, values: Values) -> Values:
    return {**without_experts(metadata, values), **lfm_values(metadata, values)}


FAMILY = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    configure=configure,
    gguf=GgufForm("lfm2", values=_gguf_values),
)
