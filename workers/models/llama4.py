"""Llama 4: experts whose inputs are weighted, attention in chunks, and layers without rope that scale queries;
multimodal models have a vision tower for tiles."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import ExpertNames, Experts
from numaserve.workers.layers.layer import FeedForward
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.query_key_norms import NoNorms, UnitNorms
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.mlp import MlpNames
from numaserve.workers.models.config.experts import read_experts
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_deepseek import SIGMOID
from numaserve.workers.models.config.huggingface import (
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MULTIMODAL,
    Common,
    read_biases,
    read_common,
    read_layer_kinds,
    read_rotated,
    read_text,
    windows_of,
)
from numaserve.workers.models.config.llama4_vision import LLAMA4_PROJECTOR, read_llama4_images, seeing_llama4
from numaserve.workers.models.config.rope import MAX_POSITION, query_scale, read_rope
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.program.rope import UNROTATED, RopeConfig

_DEFAULTS = {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
}
_VISION: dict[str, Any] = {"ignored_prefixes": (*MULTIMODAL["ignored_prefixes"], "vision_model.")}
_APART = ExpertNames(
    router="feed_forward.router", experts="feed_forward.experts", shared="feed_forward.shared_expert"
)  # in quantized checkpoints
_TOGETHER = replace(_APART, each=MlpNames("gate_up_proj", "gate_up_proj", "down_proj"), stacked="turned")
_DENSE = MlpNames("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj")
_NORMLESS = 128  # experts of Maverick, by which llama.cpp recognises a model without norms of queries and keys


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, of the text model or of the multimodal one that holds it as `text_config`."""
    if not fields.has("text_config"):
        return _configure_text(fields, architecture, quantized=fields.has("quantization_config"))
    text = read_text(fields.with_defaults(tie_word_embeddings=False))
    config = _configure_text(text, architecture, quantized=fields.has("quantization_config"))
    return seeing_llama4(config, fields)


def _configure_text(fields: Fields, architecture: str, *, quantized: bool) -> ModelConfig:
    """Map the fields of a text model. Experts of `quantized` ones are apart."""
    names = _APART if quantized else _TOGETHER
    fields = fields.with_defaults(**_DEFAULTS)
    # An empty list has the meaning of a missing one.
    fields = fields.with_values(no_rope_layers=fields.values.get("no_rope_layers") or None)
    common = read_common(fields.with_values(attention_chunk_size=None))
    rotated = read_rotated(fields, common.layers)
    windows = _read_windows(fields, rotated)
    ropes = _read_unrotated(fields), read_rope(fields, common.head_dim, default_theta=5e5)
    norms = UnitNorms(common.eps) if fields.flag("use_qk_norm", True) else NoNorms()
    biases = read_biases(fields)
    mlp = _read_mlps(common, names)

    def block(layer: int) -> Block:
        window, is_rotated = windows[layer], rotated[layer]
        attention = common.attention(
            layer,
            rotation=Rotation(ropes[is_rotated], pairs=True),
            norms=norms if is_rotated else NoNorms(),
            mask=Mask(window, chunked=window is not None),
            biases=biases,
        )
        return common.block(layer, attention, mlp(layer))

    return common.model("llama4", architecture, block, **MULTIMODAL | _VISION)


def _read_windows(fields: Fields, rotated: list[bool]) -> list[int | None]:
    """Return the length of the chunks of each layer; None: the layer sees all tokens before."""
    chunk = fields.optional_integer("attention_chunk_size", 1, MAX_POSITION)
    chunks = read_layer_kinds(fields, [each and chunk is not None for each in rotated], name="chunked_attention")
    if chunk is None and any(chunks):
        raise fields.error("layer_types holds 'chunked_attention', but attention_chunk_size is null")
    longest = fields.integer("max_position_embeddings", 1, MAX_POSITION)
    return windows_of(chunks, None if chunk is None or chunk >= longest else chunk)


def _read_unrotated(fields: Fields) -> RopeConfig:
    """Return the rope of layers without one, with a scale of queries. The first published files state a 4 in place of
    true."""
    if fields.values.get("attn_temperature_tuning") != 4 and not fields.flag("attn_temperature_tuning", True):
        return UNROTATED
    length = fields.integer("floor_scale", 1, MAX_POSITION, 8192)
    return replace(UNROTATED, query_scale=query_scale(fields.number("attn_scale", 0.0, 1e3, 0.1), length, shift=1))


def _read_mlps(common: Common, names: ExpertNames) -> Callable[[int], FeedForward]:
    """Return the function that makes the MLP of a layer, which has experts or, in some layers, none."""
    fields = common.fields
    step = fields.integer("interleave_moe_layer_step", 0, MAX_LAYERS, 1)
    listed = fields.integers("moe_layers", 0, MAX_LAYERS)
    by_step = range(step - 1, common.layers, step) if step else ()
    moe_layers = set(listed if fields.has("moe_layers") else by_step)
    dense = fields.integer("intermediate_size_mlp", 1, MAX_INTERMEDIATE)
    num_experts, top_k = read_experts(fields, "num_local_experts") if moe_layers else (1, 1)
    routing = Routing(num_experts=num_experts, top_k=top_k, scoring="sigmoid", renormalize=False, weighs_input=True)

    def mlp(layer: int) -> FeedForward:
        if layer not in moe_layers:
            return common.mlp(layer, intermediate=dense, names=_DENSE)
        width = common.intermediate
        return Experts(f"layers.{layer}.", common.hidden, routing, width, width, names=names)

    return mlp


def _gguf_values(metadata: Fields, values: Values) -> Values:
    """Return the fields of a GGUF file. Chunks and scales of queries have llama.cpp's values, which are the defaults,
    unless a window of 0 tokens states that all layers are rotated and see all tokens."""
    metadata.refuse("llama4.expert_gating_func", SIGMOID)
    experts = metadata.integer("llama4.expert_count", 0, 2**10, 0)
    found: dict[str, object] = {
        "intermediate_size": metadata.integer("llama4.expert_feed_forward_length", 1, MAX_INTERMEDIATE),
        "intermediate_size_mlp": values.get("intermediate_size"),
        "interleave_moe_layer_step": metadata.integer("llama4.interleave_moe_layer_step", 0, MAX_LAYERS),
        "num_local_experts": experts,
        "num_experts_per_tok": metadata.integer("llama4.expert_used_count", 0, 2**10, 0),
        "use_qk_norm": experts != _NORMLESS,
    }
    if values.get("sliding_window") == 0:
        layers = metadata.integer("llama4.block_count", 1, MAX_LAYERS)
        found |= {"attention_chunk_size": None, "no_rope_layers": [1] * layers}
    return found


FAMILY = Family(
    name="llama4",
    architectures=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    configure=configure,
    gguf=GgufForm("llama4", values=_gguf_values, pairs=True, projectors=("", LLAMA4_PROJECTOR)),
    images=read_llama4_images,
    needs_processor=False,
)
