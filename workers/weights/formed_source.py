"""Checkpoints with matrices in another form than a module's weight of rows and columns, presented as such weights."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

import numpy as np
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.parameters import Source
from numaserve.workers.weights.source import RawTensor, TensorSource


class FormedSource:
    """The tensors of `source`, where those of the modules `formed` have the form that their declarations state: without
    ".weight" in their names, with in features first, or with another order or number of dimensions."""

    def __init__(self, source: TensorSource, formed: Mapping[str, Source]) -> None:
        self._source = source
        self._declared = {f"{name}.weight": declared for name, declared in formed.items()}
        bare = {name for name in source.names() if name in formed}
        self._names = {f"{name}.weight" if name in bare else name: name for name in source.names()}

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._names.keys()

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor of numbers. Raises `OperatorError` as the source does."""
        found, declared = self._source.tensor(self._names[name]), self._declared.get(name)
        if declared is None:
            return found
        if declared.turned:
            return replace(found, shape=found.shape[::-1], turned=True)
        if found.shape[-1:] != declared.shape[-1:] or prod(found.shape) != prod(declared.shape):
            return found
        if declared.channels_last:
            found = _channels_first(found, declared)
        return replace(found, shape=declared.saved_shape)

    def part(self, name: str) -> RawTensor:
        """Return a tensor of a quantized matrix. Raises `OperatorError` as the source does."""
        return self._source.part(self._names[name])

    def release(self, tensor: RawTensor) -> None:
        """Mark the tensor as not needed for now."""
        self._source.release(tensor)


def formed_sources(model: Layer) -> list[Source]:
    """Return the matrices of a model that checkpoints have in another form."""
    sources = (source for parameter in model.parameters() for source in parameter.sources)
    return [each for each in sources if each.bare or each.turned or each.channels_last or each.gridded]


def _channels_first(tensor: RawTensor, declared: Source) -> RawTensor:
    """Return a copy whose in features are in the order of channels, rows and columns."""
    channels, *kernel = declared.kernel
    values = tensor.data.reshape(declared.shape[0], *kernel, channels, -1)
    return replace(tensor, data=np.moveaxis(values, -2, 1).reshape(-1))
