"""A rank's weights that are only shapes: laid out as the loader does it, with no memory behind them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.settings import WeightFormats
from numaserve.workers.weights.formats import MatrixFormat
from numaserve.workers.weights.loader import lay_out
from numaserve.workers.weights.sharding import Shard, matrix_bytes
from numaserve.workers.weights.source import RawTensor
from numaserve.workers.weights.tensors import layer_shapes
from numaserve.workers.weights.weights import Weights

if TYPE_CHECKING:
    from numaserve.kernels import PackedMatrix


@dataclass(frozen=True)
class ShapeMatrix:
    """What can be known of a `PackedMatrix` before it is made."""

    n: int
    k: int
    format: str
    group: int
    offsets: str
    nbytes: int


@dataclass
class ShapeSource:
    """A checkpoint of which there is only the configuration. Vectors are zeros."""

    config: ModelConfig
    interleaved_rope: bool = False
    _shapes: dict[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        config, family = self.config, FAMILIES[self.config.family]
        self._prefix = family.prefixes[0]
        self._shapes = {"norm.weight": (config.hidden_size,)}
        self._shapes |= layer_shapes(config, family, None) | layer_shapes(config, family, config.moe)

    def names(self) -> Collection[str]:
        """Of what the loader looks for; all else is found by its shape."""
        return [f"{self._prefix}embed_tokens.weight", "lm_head.weight"]

    def tensor(self, name: str) -> RawTensor:
        """Zeros, in fp32."""
        within = name.removeprefix(self._prefix)
        if within.startswith("layers."):
            within = within.split(".", 2)[2]
        shape = self._shapes[within]
        return RawTensor(name, np.zeros(4 * int(np.prod(shape)), np.uint8), "f32", shape)

    def part(self, name: str) -> RawTensor:
        """Parts of quantised matrices, which nothing is packed from."""
        raise NotImplementedError(name)

    def release(self, tensor: RawTensor) -> None:
        """Nothing was read."""


def shape_weights(config: ModelConfig, shard: Shard, formats: WeightFormats) -> Weights:
    """The weights of a rank's part. Raises `OperatorError` where the checkpoint cannot be had in `formats`."""
    return lay_out(ShapeSource(config), config, shard, formats, _shape_matrix)


def _shape_matrix(n: int, k: int, made: MatrixFormat) -> PackedMatrix:
    matrix = ShapeMatrix(n, k, made.format, made.group, made.offsets, matrix_bytes(n, k, made))
    return cast("PackedMatrix", matrix)
