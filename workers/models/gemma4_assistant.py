"""Gemma 4's assistants: drafters without keys and values of their own, for `--draft-model`.

The drafters of E2B and E4B score the tokens of a few clusters alone. That is left out: all tokens are scored.
"""

from dataclasses import fields as fields_of
from dataclasses import replace

from numaserve.workers.layers.assistant import Assistant, attention_of
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.rotation import Rotation
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gemma4 import DEFAULTS, UNIFIED_DEFAULTS, read_readers, read_unused
from numaserve.workers.models.config.huggingface import read_common, read_text
from numaserve.workers.models.family import Family
from numaserve.workers.models.gemma4 import blocks_of
from numaserve.workers.models.spec import ModelConfig

_PROJECTIONS = ("pre_projection", "post_projection")


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json, which holds the text model's as `text_config`."""
    served_hidden = fields.integer("backbone_hidden_size", 32, 2**17, 1536)
    if served_hidden % 32:
        raise fields.error(f"backbone_hidden_size={served_hidden} must be a multiple of 32")
    text = read_text(fields)
    text.refuse("hidden_size_per_layer_input", 0)
    text.refuse("enable_moe_block", False)
    defaults = UNIFIED_DEFAULTS if "Unified" in architecture else DEFAULTS
    common = read_common(text.with_defaults(**defaults).with_values(use_bidirectional_attention=None))
    readers = read_readers(common)
    blocks = blocks_of(common, readers, None, apart=False)
    model = common.model(
        "gemma4_assistant",
        architecture,
        lambda layer: _at_the_next_position(blocks(layer)),
        aliases=tuple((each, each) for each in _PROJECTIONS),
        ignored_prefixes=("masked_embedding.", *read_unused(readers, ("model.",))),
    )
    values = {each.name: getattr(model.decoder, each.name) for each in fields_of(model.decoder)}
    return replace(model, decoder=Assistant(**values, served_hidden=served_hidden))


def _at_the_next_position(block: Block) -> Block:
    """Return a layer whose queries are at the position after the last token that they attend to."""
    attention = attention_of(block)
    rope = replace(attention.rotation.rope, shift=1)
    return replace(block, attention=replace(attention, rotation=Rotation(rope)))


FAMILY = Family(
    name="gemma4_assistant",
    architectures=("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
    configure=configure,
)
