"""Gemma 3, text: Gemma 2 without soft caps, with q/k norms, five sliding layers to one full, and a rope for each kind.

EmbeddingGemma is bidirectional. The text part of the multimodal checkpoints is served too; their vision tower is left
out.
"""

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import (
    MULTIMODAL,
    read_common,
    read_layer_kinds,
    read_text,
)
from numaserve.workers.models.config.rope import read_ropes
from numaserve.workers.models.family import Family, GgufForm, Values
from numaserve.workers.models.gemma2 import gemma, query_scalar
from numaserve.workers.models.spec import ModelConfig

# Published multimodal checkpoints spell out only what differs from these.
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, of the text model or of the multimodal one that holds it as `text_config`."""
    if architecture == "Gemma3ForConditionalGeneration":
        fields = read_text(fields)
    fields = fields.with_defaults(**_DEFAULTS)
    fields.refuse("is_causal", True)  # with windows of another width
    common = read_common(fields, plus_one=True, either=True)
    pattern = fields.integer("sliding_window_pattern", 1, 2**10, 6)
    slides = read_layer_kinds(fields, [bool((layer + 1) % pattern) for layer in range(common.layers)])
    full_theta = fields.number("rope_theta", 1.0, 1e12, 1e6)
    sliding_theta = fields.number("rope_local_base_freq", 1.0, 1e12, 1e4)
    ropes = read_ropes(fields, common.head_dim, full_theta=full_theta, sliding_theta=sliding_theta)
    return gemma(common, "gemma3", architecture, slides, ropes=ropes, norms_of=common.head_norms, **MULTIMODAL)


_EMBEDDING = "gemma-embedding"


def _gguf_values(metadata: Fields, values: Values) -> Values:
    is_embedding = metadata.text("general.architecture") == _EMBEDDING
    return {**query_scalar(metadata, values), "is_causal": None, "use_bidirectional_attention": is_embedding}


FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma3TextModel"),
    configure=configure,
    gguf=GgufForm("gemma3", values=_gguf_values, others=(_EMBEDDING,)),
)
