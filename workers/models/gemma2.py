"""Gemma 2: norms after each sub-layer too, soft caps on attention scores and logits, every second layer sliding."""

from collections.abc import Callable, Sequence
from typing import Any

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.embedding import Embedding
from numaserve.workers.layers.mixers.query_key_norms import NoNorms, QueryKeyNorms
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.layers.norm import Norm
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    Common,
    read_activation,
    read_biases,
    read_common,
    read_layer_count,
    read_layer_kinds,
    read_sliding_window,
    windows_of,
)
from numaserve.workers.models.config.rope import MAX_POSITION
from numaserve.workers.models.family import Family, GgufForm, Values, without_experts
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import RopeConfig

_DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_SIZE_27B = {"gemma2": 46, "gemma3": 62}  # layers of the models of 27B parameters, by GGUF architecture


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; what it leaves out has transformers' default."""
    fields = fields.with_defaults(**_DEFAULTS)
    common = read_common(fields, plus_one=True)
    slides = read_layer_kinds(fields, [layer % 2 == 0 for layer in range(read_layer_count(fields))])
    return gemma(
        common, "gemma2", architecture, slides, ropes=(common.rope, common.rope), norms_of=lambda layer: NoNorms()
    )


def gemma(
    common: Common,
    family: str,
    architecture: str,
    slides: Sequence[bool],
    *,
    ropes: tuple[RopeConfig, RopeConfig],
    norms_of: Callable[[int], QueryKeyNorms],
    **changes: Any,
) -> ModelConfig:
    """Return a model of Gemma 2 or 3. `ropes` are of layers that see all tokens and of layers that slide; `norms_of`
    makes the norms of queries and keys of a layer; `changes` are fields of the model."""
    fields = common.fields
    biases = read_biases(fields)
    windows = windows_of(slides, _window(common))
    activation = read_activation(fields, "hidden_activation", "gelu_pytorch_tanh")
    scale = fields.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5
    softcap = fields.optional_number("attn_logit_softcapping", 1e-3, 1e6)

    def block(layer: int) -> Block:
        at = f"layers.{layer}."

        def norm(module: str, gguf: str) -> Norm:
            return common.norm(at + module, at + gguf)

        attention = common.attention(
            layer,
            rotation=Rotation(ropes[slides[layer]]),
            scale=scale,
            norms=norms_of(layer),
            mask=common.mask(windows[layer], softcap),
            biases=biases,
        )
        return common.block(
            layer,
            attention,
            common.mlp(layer, activation=activation),
            input_norm=norm("input_layernorm", "attn_norm"),
            post_attention_norm=norm("post_attention_layernorm", "post_attention_norm"),
            mlp_norm=norm("pre_feedforward_layernorm", "ffn_norm"),
            post_mlp_norm=norm("post_feedforward_layernorm", "post_ffw_norm"),
        )

    # The square root is taken in fp32 here, as transformers does in an fp32 model; its bf16 models round it.
    return common.model(
        family,
        architecture,
        block,
        embedding=Embedding(common.vocabulary, common.hidden, common.hidden**0.5),
        softcap=fields.optional_number("final_logit_softcapping", 1e-3, 1e6),
        **changes,
    )


def _window(common: Common) -> int | None:
    """Return the sliding window. If the model is bidirectional, half of it is on either side, as in transformers."""
    if not common.bidirectional:
        return read_sliding_window(common.fields, default=4096)
    return common.fields.integer("sliding_window", 2, MAX_POSITION, 4096) // 2


def query_scalar(metadata: Fields, values: Values) -> Values:
    """Return `values` with the query scale. The 27B models divide by the hidden size per head instead of the head's;
    the file does not state it."""
    name, fields = metadata.text("general.architecture"), Fields(values, metadata.where)
    per_head = fields.integer("hidden_size", 1, 2**17) // fields.integer("num_attention_heads", 1, 2**10)
    is_27b = values.get("num_hidden_layers") == _SIZE_27B.get(name)
    scalar = per_head if is_27b else fields.integer("head_dim", 1, 2**10, max(1, per_head))
    return {**without_experts(metadata, values), "query_pre_attn_scalar": scalar}


FAMILY = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    configure=configure,
    gguf=GgufForm("gemma2", values=query_scalar),
)
