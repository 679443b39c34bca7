"""Text models with a vision tower, in whose layers the tokens of an image see each other."""

from collections.abc import Sequence
from dataclasses import replace

from numaserve.workers.layers.block import Block
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.names import Aliases
from numaserve.workers.layers.vision import Tower
from numaserve.workers.models.spec import ModelConfig


def seeing_images(config: ModelConfig, tower: Tower, aliases: Aliases, both_ways: Sequence[bool]) -> ModelConfig:
    """Return a text model with a `tower`, whose tensors have the names of `aliases`. `both_ways` has whether tokens of
    an image see later ones of the same image, for each layer."""
    blocks = tuple(
        _with_images(block) if each else block for block, each in zip(config.decoder.blocks, both_ways, strict=True)
    )
    return replace(config, decoder=replace(config.decoder, blocks=blocks)).with_tower(tower, aliases)


def _with_images(block: Block) -> Block:
    attention = block.attention
    assert isinstance(attention, Attention)  # noqa: S101  the layers of these models have no other mixer
    return replace(block, attention=replace(attention, mask=replace(attention.mask, images=True)))
