"""Fields of config.json that all models with Mamba-2 read in the same way."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from numaserve.workers.layers.mixers.mamba2 import Mamba2
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import Common
from numaserve.workers.program.caches import MAX_CONV_TAPS, MAX_KEY_DIM

_MAX_HEADS = 2**10
_INFINITY = {"__float__": "Infinity"}  # as transformers saves it


@dataclass(frozen=True)
class SpaceKeys:
    """The names of the fields in config.json, and the name of the module in a layer."""

    module: str
    heads: str
    groups: str
    state_dim: str
    head_dim: str
    taps: str
    bias: str  # of the convolution
    other_biases: tuple[str, ...]  # which no published model has


def read_mamba2(common: Common, keys: SpaceKeys) -> Callable[[int], Mamba2]:
    """Return the function that makes the state space of a layer. Raises `OperatorError` for values out of range."""
    fields = common.fields
    for key in keys.other_biases:
        fields.refuse(key, False)
    heads, groups = (fields.integer(key, 1, _MAX_HEADS) for key in (keys.heads, keys.groups))
    if heads % groups:
        raise fields.error(f"{keys.heads}={heads} must be a multiple of {keys.groups}={groups}")
    state_dim, head_dim = (fields.integer(key, 1, MAX_KEY_DIM) for key in (keys.state_dim, keys.head_dim))
    taps, has_bias = fields.integer(keys.taps, 2, MAX_CONV_TAPS), fields.flag(keys.bias, True)
    least, most = _read_steps(fields)

    def space(layer: int) -> Mamba2:
        return Mamba2(
            f"layers.{layer}.",
            keys.module,
            common.hidden,
            groups,
            heads,
            state_dim,
            head_dim,
            taps,
            common.eps,
            least,
            most,
            has_bias,
        )

    return space


def mamba2_values(metadata: Fields, keys: SpaceKeys) -> dict[str, object]:
    """Return the fields of config.json for a GGUF file. Raises `OperatorError` for sizes that do not fit each other."""
    name = metadata.text("general.architecture")
    heads = metadata.integer(f"{name}.ssm.time_step_rank", 1, _MAX_HEADS)
    inner = metadata.integer(f"{name}.ssm.inner_size", 1, _MAX_HEADS * MAX_KEY_DIM)
    if inner % heads:
        raise metadata.error(f"{name}.ssm.inner_size={inner} must be a multiple of {name}.ssm.time_step_rank={heads}")
    return {
        keys.heads: heads,
        keys.head_dim: inner // heads,
        keys.groups: metadata.values.get(f"{name}.ssm.group_count"),
        keys.state_dim: metadata.values.get(f"{name}.ssm.state_size"),
        keys.taps: metadata.values.get(f"{name}.ssm.conv_kernel"),
    }


def _read_steps(fields: Fields) -> tuple[float, float]:
    """Return the least step and the most one: by default any step above zero."""
    found = fields.values.get("time_step_limit")
    if found is None:
        return 0.0, math.inf
    limits = [math.inf if each == _INFINITY else each for each in found] if isinstance(found, list) else []
    match limits:
        case [int() | float() as least, int() | float() as most] if 0 <= least <= most:
            return float(least), float(most)
    raise fields.error("time_step_limit must be a list of two numbers in ascending order, the first one not below 0")
