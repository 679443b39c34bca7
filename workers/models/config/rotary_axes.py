"""Rotary coordinates of the text of models that see (M-RoPE; Wang et al., 2024): each pair of dimensions is rotated by
time, by height or by width."""

from dataclasses import replace

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_LAYERS
from numaserve.workers.models.config.rope import rope_fields
from numaserve.workers.program.rope import RopeConfig
from numaserve.workers.program.slots import RowIndex

Sections = tuple[int, int, int]  # pairs that are rotated by each coordinate
_AXES: tuple[RowIndex, ...] = ("time", "height", "width")


def by_axes(decoder: Decoder, text: Fields, default: Sections, *, interleaved: bool) -> Decoder:
    """Return a decoder whose layers with attention, also the one that predicts, are rotated by coordinates.

    `default` are the sections where the fields of the `text` have none. With `interleaved`, pairs are rotated by time,
    height and width in turn as far as the sections reach, and all others by time; otherwise each section follows the
    one before it.
    """

    def turned(block: Block) -> Block:
        attention = block.attention
        if not isinstance(attention, Attention):
            return block
        rope = _with_axes(attention.rotation.rope, text, default, interleaved=interleaved)
        return replace(block, attention=replace(attention, rotation=replace(attention.rotation, rope=rope)))

    predictor = decoder.predictor
    if predictor is not None:
        predictor = replace(predictor, block=turned(predictor.block))
    return replace(decoder, blocks=tuple(map(turned, decoder.blocks)), predictor=predictor)


def _with_axes(rope: RopeConfig, text: Fields, default: Sections, *, interleaved: bool) -> RopeConfig:
    parameters = rope_fields(text)
    parameters.refuse("mrope_interleaved", interleaved)
    sections = parameters.integers("mrope_section", 0, MAX_LAYERS) if parameters.has("mrope_section") else default
    if len(sections) != len(_AXES):
        raise parameters.error(f"mrope_section has {len(sections)} numbers, and must have {len(_AXES)}")
    pairs = rope.rotary_dim // 2
    if interleaved:
        axes = [pair % 3 if pair < 3 * sections[pair % 3] else 0 for pair in range(pairs)]
    elif sum(sections) == pairs:
        axes = [axis for axis, section in enumerate(sections) for _ in range(section)]
    else:
        raise parameters.error(f"mrope_section={list(sections)} must add up to {pairs}, the rotated pairs of a head")
    return replace(rope, axes=tuple(_AXES[axis] for axis in axes))
