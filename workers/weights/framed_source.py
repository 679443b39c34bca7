"""GGUF files with a tensor for each frame of a convolution, presented as one tensor."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.weights.source import RawTensor, TensorSource

_OUTER = 2  # dimensions before that of the frames: out features and channels


class FramedSource:
    """The tensors of `source`, where `frames` are the names of the tensors that continue another one.

    Tensors [out features, channels, rows, columns] become one [out features, channels, frames, rows, columns]. It is a
    copy: it is small, and the frames of an image are equal, but the sum of their weights would be rounded once more.
    """

    def __init__(self, source: TensorSource, frames: Mapping[str, Sequence[str]]) -> None:
        self._source = source
        known = set(source.names())
        self._frames = {name: each for name, each in frames.items() if known >= {name, *each}}
        continuing = {each for found in self._frames.values() for each in found}
        self._names = [name for name in source.names() if name not in continuing]

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._names

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor of numbers. Raises `OperatorError` as the source does, and for frames that differ in shape or
        type, or are none."""
        first = self._source.tensor(name)
        if name not in self._frames:
            return first
        frames = [first, *map(self._source.tensor, self._frames[name])]
        if len({(each.shape, each.dtype) for each in frames}) > 1:
            raise OperatorError(f"{first.label}: its frames differ in shape or type; fetch the file again")
        if len(first.shape) <= _OUTER or not first.data.size:
            raise OperatorError(
                f"{first.label} has shape {list(first.shape)}, no frame of a convolution; fetch it again"
            )
        rows = int(np.prod(first.shape[:_OUTER]))
        joined = np.stack([each.data.reshape(rows, -1) for each in frames], axis=1).reshape(-1)
        shape = (*first.shape[:_OUTER], len(frames), *first.shape[_OUTER:])
        return replace(first, data=joined, shape=shape)

    def part(self, name: str) -> RawTensor:
        """Return a tensor of a quantized matrix. Raises `OperatorError` as the source does."""
        return self._source.part(name)

    def release(self, tensor: RawTensor) -> None:
        """Mark the tensor as not needed for now."""
        self._source.release(tensor)
