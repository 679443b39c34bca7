"""What tests look at in a configuration."""

from dataclasses import fields, replace
from typing import TypeVar

from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.layers.mlp import Mlp, PlainMlp
from numaserve.workers.models.spec import ModelConfig

Kind = TypeVar("Kind", bound=Layer)
Placed = TypeVar("Placed", Attention, LatentAttention, Experts, Mlp)


def layers_of(config: ModelConfig, kind: type[Kind]) -> list[Kind]:
    """All layers of a kind, in the order of the model."""
    found, waiting = list[Kind](), list[Layer]([config.decoder])
    while waiting:
        layer = waiting.pop(0)
        if isinstance(layer, kind):
            found.append(layer)
        waiting = layer.children + waiting
    return found


def the_only(config: ModelConfig, kind: type[Placed]) -> Placed:
    """What all layers of a kind are, but for their names. Fails where they differ, and where there is none."""
    (found,) = {_unplaced(layer, layer.at) for layer in layers_of(config, kind)}
    return found


def _unplaced(layer: Kind, at: str) -> Kind:
    """The layer without `at` in its names and those of its parts."""
    changes: dict[str, object] = {}
    for field in fields(layer):
        value = getattr(layer, field.name)
        if isinstance(value, Layer):
            changes[field.name] = _unplaced(value, at)
        elif isinstance(value, str):
            changes[field.name] = value.removeprefix(at)
    return replace(layer, **changes)


def windows(config: ModelConfig) -> list[int | None]:
    """How far each layer looks back; None: all the way."""
    return [layer.mask.window for layer in layers_of(config.text_only(), Attention)]


def layers_with_experts(config: ModelConfig) -> tuple[int, ...]:
    """Their numbers in the checkpoint. The others have a dense MLP, or none where layers are mixers or MLPs."""
    mlps = [block.mlp for block in config.decoder.blocks if block.mlp is not None]
    assert {type(mlp) for mlp in mlps} <= {Experts, Mlp, PlainMlp}
    return tuple(int(mlp.at.split(".")[1]) for mlp in mlps if isinstance(mlp, Experts))
