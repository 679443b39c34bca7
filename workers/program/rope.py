"""Rotary position embeddings, and their tables.

Tables are computed in float64: in float32, far positions would lose digits.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from numaserve.workers.program.slots import RowIndex

Floats = npt.NDArray[np.float64]
RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "none"]


@dataclass(frozen=True)
class QueryScale:
    """The factor of queries by their position: 1 + beta * log(1 + floor((position + shift) / length)).

    Sources: Nakanishi, 2025, as Llama 4 and the later Mistral models use it.
    """

    beta: float
    length: int
    shift: int = 0

    def factors(self, positions: int) -> npt.NDArray[np.float32]:
        """The factors of positions 0 .. `positions` - 1, float32 [positions]."""
        lengths = (np.arange(positions, dtype=np.int64) + self.shift) // self.length
        return (1.0 + self.beta * np.log1p(lengths.astype(np.float64))).astype(np.float32)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding of one kind of layer; the scaling fields are those of transformers."""

    kind: RopeKind = "default"
    theta: float = 10000.0
    rotary_dim: int = 0  # how many leading dimensions of a head are rotated
    distance: int = 0  # from a dimension of a pair to the other one; 0: half of `rotary_dim`
    factor: float = 1.0
    attention_factor: float | None = None  # yarn, longrope; None: derived from the factor
    original_max_position: int = 0  # llama3, yarn, longrope
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn
    short_factor: tuple[float, ...] = ()  # longrope, [rotary_dim / 2]
    long_factor: tuple[float, ...] = ()  # longrope, [rotary_dim / 2]
    query_scale: QueryScale | None = None
    shift: int = 0  # the position of the first row of the tables
    axes: tuple[RowIndex, ...] = ()  # of each pair, the index of tokens by which it is rotated; empty: the position

    def table_bytes(self, positions: int) -> int:
        """Return the memory of its tables: cosines, sines and the factors of queries."""
        return 4 * positions * (2 * (self.rotary_dim // 2) + (self.query_scale is not None))


# The rope of a layer that is not rotated. Its tables, ones and zeros, turn a pair by nothing, exactly: the operation
# that stores keys needs no second form. One pair keeps them small.
UNROTATED = RopeConfig("none", rotary_dim=2)


def rope_tables(rope: RopeConfig, positions: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosine and sine of positions 0 .. `positions` - 1, each float32 [positions, rotary_dim / 2], attention factor
    included.

    Longrope has one set of frequencies for short contexts and one for long ones; the longest context served decides,
    for every request. transformers decides by the length so far, which would make a token's logits depend on how its
    cached keys were computed.
    """
    inverse, factor = frequencies(rope, positions)
    angles = (np.arange(positions, dtype=np.float64) + rope.shift)[:, None] * inverse
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def frequencies(rope: RopeConfig, positions: int) -> tuple[Floats, float]:
    """Radians per position of each rotated pair, [rotary_dim / 2], and the factor on cosine and sine."""
    # With a distance, all pairs that a head has room for count, although the others have no frequency.
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / (2 * rope.distance or rope.rotary_dim)
    inverse: Floats = rope.theta**-exponents
    match rope.kind:
        case "default" | "linear":
            return inverse / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, inverse), 1.0
        case "yarn":
            return _yarn(rope, inverse), _yarn_attention_factor(rope)
        case "none":
            return np.zeros_like(inverse), 1.0
        case "longrope":
            is_long = positions > rope.original_max_position
            return inverse / np.array(rope.long_factor if is_long else rope.short_factor), _longrope_factor(rope)


def _llama3(rope: RopeConfig, inverse: Floats) -> Floats:
    """Long wavelengths are divided by the factor, short ones kept, those between interpolated. Llama 4's two bounds
    are equal: nothing is between them."""
    turns = rope.original_max_position * inverse / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0) if low < high else (turns >= low).astype(np.float64)
    return (1 - smooth) * inverse / rope.factor + smooth * inverse


def _yarn(rope: RopeConfig, inverse: Floats) -> Floats:
    """A ramp over the dimensions, from the frequencies as they are to those divided by the factor."""

    def dimension_with_turns(turns: float) -> float:
        ratio = math.log(rope.original_max_position / (turns * 2 * math.pi))
        return rope.rotary_dim * ratio / (2 * math.log(rope.theta))

    low, high = dimension_with_turns(rope.beta_fast), dimension_with_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero, as in transformers
    ramp = np.clip((np.arange(len(inverse)) - low) / (high - low), 0.0, 1.0)
    scaled: Floats = inverse * (1 - ramp) + inverse / rope.factor * ramp
    return scaled


def _yarn_attention_factor(rope: RopeConfig) -> float:
    def magnitude(scale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * scale * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return magnitude(1.0)


def _longrope_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1.0:
        return 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position))
