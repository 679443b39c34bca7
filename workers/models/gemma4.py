"""Gemma 4: global layers with wider heads, keys and values shared by the last layers, inputs of each layer.

Multimodal checkpoints have a vision tower, or in the unified model an embedder of images without blocks. Where
config.json says so, the tokens of an image see each other in sliding layers. The audio tower is left out.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.embedding import Embedding
from numaserve.workers.layers.layer_inputs import InputGate, LayerInputs
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.mask import Mask
from numaserve.workers.layers.mixers.query_key_norms import HeadNorms
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.parameters import Source
from numaserve.workers.layers.scaled_block import ScaledBlock
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gemma4 import (
    DEFAULTS,
    UNIFIED_DEFAULTS,
    Geometry,
    gguf_values,
    read_geometry,
    read_unused,
)
from numaserve.workers.models.config.gemma4_experts import read_experts_beside
from numaserve.workers.models.config.gemma4_vision import (
    ALIASES,
    PATCH_ALIASES,
    UNIFIED,
    read_patch_tower,
    read_pooled_images,
    read_pooled_tower,
)
from numaserve.workers.models.config.huggingface import (
    MULTIMODAL,
    Common,
    read_activation,
    read_biases,
    read_common,
    read_text,
)
from numaserve.workers.models.config.images_seen import seeing_images
from numaserve.workers.models.config.rope import read_ropes
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig

_TOWERS = ("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.", "vision_embedder.")
_IN_GGUF = ("a.", "mm.a.")  # the audio tower in the file of the vision tower


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, of the text model or of the multimodal one that holds it as `text_config`; what it leaves out
    has transformers' default. Quantized checkpoints have a tensor for each expert."""
    apart, outer = fields.has("quantization_config"), fields
    if architecture.endswith("ForConditionalGeneration") or fields.has("text_config"):  # a GGUF file names no class
        fields = read_text(fields)
    fields = fields.with_defaults(**(UNIFIED_DEFAULTS if "Unified" in architecture else DEFAULTS))
    fields.refuse("use_bidirectional_attention", "vision")
    both_ways = fields.values.get("use_bidirectional_attention") == "vision"
    common = read_common(fields.with_values(use_bidirectional_attention=None))
    geometry = read_geometry(common)
    inputs = _read_inputs(common)
    block = blocks_of(common, geometry, inputs, apart=apart)
    model = common.model(
        "gemma4",
        architecture,
        block,
        embedding=Embedding(common.vocabulary, common.hidden, common.hidden**0.5),
        softcap=fields.optional_number("final_logit_softcapping", 1e-3, 1e6),
        prefixes=MULTIMODAL["prefixes"],
        ignored_prefixes=(
            *(f"model.{each}" for each in _TOWERS),
            *_IN_GGUF,
            *read_unused(geometry, MULTIMODAL["prefixes"]),
        ),
    )
    model = replace(model, decoder=replace(model.decoder, inputs=inputs))
    if not outer.has("vision_config"):
        return model
    slides = [both_ways and each for each in geometry.slides]
    # GGUF files name no class.
    if "Unified" in architecture or outer.child("vision_config").values.get("model_type") == UNIFIED:
        return seeing_images(model, read_patch_tower(outer, model.hidden_size), PATCH_ALIASES, slides)
    return seeing_images(model, read_pooled_tower(outer, model.hidden_size), ALIASES, slides)


def _read_inputs(common: Common) -> LayerInputs | None:
    """Return the inputs that the layers have besides the residual stream, if they have some.

    The projection is multiplied by 1 / sqrt(hidden) before its norm, which only changes the norm's eps. The row of the
    table is multiplied by sqrt(width), and the sum of both by 1 / sqrt(2).
    """
    fields = common.fields
    width = fields.integer("hidden_size_per_layer_input", 0, 2**12)
    if not width:
        return None
    if width % 32:
        raise fields.error(f"hidden_size_per_layer_input={width} must be a multiple of 32")
    norm = Norm("per_layer_projection_norm", width, common.eps * common.hidden, "per_layer_proj_norm", factor=0.5**0.5)
    vocabulary = fields.integer("vocab_size_per_layer_input", 1, 2**22, common.vocabulary)
    pad = fields.integer("pad_token_id", 0, vocabulary - 1, 0)
    return LayerInputs(vocabulary, common.hidden, common.layers, width, norm, (width / 2) ** 0.5, pad)


def blocks_of(common: Common, geometry: Geometry, inputs: LayerInputs | None, *, apart: bool) -> Callable[[int], Block]:
    """Return the function that makes each layer; `apart` is of its experts."""
    activation = read_activation(common.fields, "hidden_activation", "gelu_pytorch_tanh")
    beside_of = read_experts_beside(common, activation, apart=apart)
    attention_of = _attention(common, geometry)

    def block(layer: int) -> Block:
        at = f"layers.{layer}."
        norms = {
            "input_norm": ("input_layernorm", "attn_norm"),
            "post_attention_norm": ("post_attention_layernorm", "post_attention_norm"),
            "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
            "post_mlp_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
        }
        made: dict[str, Any] = {name: common.norm(at + of, at + gguf) for name, (of, gguf) in norms.items()}
        gate = None
        if inputs is not None:
            after = common.norm(f"{at}post_per_layer_input_norm", f"{at}post_norm")
            gate = InputGate(at, common.hidden, layer, inputs.width, after, activation)
        return ScaledBlock(
            attention=attention_of(layer),
            mlp=common.mlp(layer, activation=activation, intermediate=geometry.intermediate(layer)),
            scalar=Source(f"{at}layer_scalar", (1,), f"{at}layer_output_scale.weight"),
            beside=beside_of(layer),
            gate=gate,
            **made,
        )

    return block


def _attention(common: Common, geometry: Geometry) -> Callable[[int], Attention]:
    """Return the function that makes the attention of each layer. Values have a norm without a weight, and the norms of
    queries and keys take the place of a scale."""
    fields = common.fields
    thetas = {
        "full_theta": fields.number("rope_theta", 1.0, 1e12, 1e6),
        "sliding_theta": fields.number("rope_local_base_freq", 1.0, 1e12, 1e4),
    }
    full = read_ropes(fields, geometry.full.head_dim, **thetas)[0]
    sliding = read_ropes(fields, common.head_dim, **thetas)[1]
    biases = read_biases(fields)

    def attention(layer: int) -> Attention:
        slides, source = geometry.slides[layer], geometry.sources[layer]
        mine = common if slides else geometry.full
        norms = mine.head_norms(layer)
        return mine.attention(
            layer,
            rotation=Rotation(sliding if slides else full),
            scale=1.0,
            norms=HeadNorms(norms.q, None if source == "cached" else norms.k, of_values=True),
            mask=Mask(geometry.window if slides else None),
            biases=biases,
            source=source,
        )

    return attention


FAMILY = Family(
    name="gemma4",
    architectures=(
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForCausalLM",
        "Gemma4UnifiedForConditionalGeneration",
    ),
    configure=configure,
    gguf=GgufForm("gemma4", values=gguf_values, projectors=("", "gemma4v", "gemma4uv")),
    images=read_pooled_images,
    needs_processor=False,
)
