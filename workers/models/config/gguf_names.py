"""GGUF's tensor names and shapes, converted to Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.embedding import HEAD
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.layers.parameters import EACH, Source

if TYPE_CHECKING:
    from gguf import ReaderTensor

PREFIX = "model."
NAMES = TensorNames(PREFIX, HEAD)  # the names that this module makes
_LAYERS, _BLOCKS = "layers.", "blk."
_LAYER = re.compile(r"^[a-z.]*layers?\.(?=\d)")  # encoders have "encoder.layer." and others
_TOWER_LAYER = re.compile(
    r"^((vision_model|vision_tower)\.encoder\.(?:layers|blocks)|vision_model\.model\.layers|visual\.blocks"
    r"|vision_tower\.transformer\.layers)\.(?=\d)"
)
_ROWS = ("v.class_embd",)  # matrices of a single row, which files name like vectors
_MAX_UNITS = 2**10
_FRAMED = 4  # dimensions of the kernel of a convolution over channels, frames, rows and columns

Shape = tuple[int, ...]


class GgufNames:
    """The tensors of a decoder in GGUF files, where `skipped` layers follow the decoder's layers."""

    def __init__(self, decoder: Decoder, skipped: int) -> None:
        sources = (source for parameter in decoder.parameters() for source in parameter.sources)
        self._sources = {name_in_file(source): source for source in sources}
        first = len(decoder.blocks)
        self._skipped = tuple(f"{_BLOCKS}{layer}." for layer in range(first, first + skipped))

    def find(self, name: str, shape: Shape) -> tuple[list[str], Shape]:
        """Return the Hugging Face names of a tensor, and the shape of each tensor of such a name.

        If units are one tensor in the file, each unit has a name. A tensor that the decoder does not have keeps its own
        name.
        """
        source = self._sources.get(name)
        if source is None:
            is_skipped = name.startswith(self._skipped)
            return [PREFIX + name.replace(_BLOCKS, _LAYERS, 1) if is_skipped else name], shape
        if EACH not in source.name:
            return [_name(source, 0)], _as_declared(shape, source.shape)
        if len(shape) != len(source.shape) + 1 or shape[0] > _MAX_UNITS:
            return [name], shape
        return [_name(source, unit) for unit in range(shape[0])], shape[1:]

    def frames(self) -> dict[str, list[str]]:
        """Return the tensors that a file has for a convolution over frames after that of the first frame, by the
        convolution's Hugging Face name."""
        return {
            _name(source, 0): [f"{name}.{frame}" for frame in range(1, source.kernel[1])]
            for name, source in self._sources.items()
            if len(source.kernel) == _FRAMED
        }


def shape_of(tensor: ReaderTensor) -> Shape:
    """Return the dimensions of a tensor in Hugging Face's order: in the file the innermost is the first."""
    return tuple(int(dim) for dim in reversed(tensor.shape))


def name_in_file(source: Source) -> str:
    """Return the name of a declared tensor in GGUF files."""
    name = _LAYER.sub(_BLOCKS, _TOWER_LAYER.sub(f"v.{_BLOCKS}", source.gguf))
    return f"{name}.weight" if source.is_matrix and name not in _ROWS else name


def _name(source: Source, unit: int) -> str:
    return NAMES.of(source, unit) + (".weight" if source.is_matrix else "")


def _as_declared(shape: Sequence[int], declared: Shape) -> Shape:
    """Return the declared shape if a file only divides the rows differently: a matrix of one row may be flat, rows of
    several heads may have a dimension for the heads, those of a convolution lack the dimension of one, and vectors of
    state spaces have a second dimension."""
    has_rows = len(declared) > 1 and shape[-1:] == declared[-1:]
    is_same = prod(shape) == prod(declared) and (has_rows or len(declared) == 1)
    return declared if is_same else tuple(shape)
