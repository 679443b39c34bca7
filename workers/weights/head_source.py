"""A checkpoint with the heads of single tokens next to it."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numaserve.workers.models.config.token_head import head_tensors
from numaserve.workers.weights.source import RawTensor, TensorSource


class HeadSource:
    """The tensors of `source` and those of the heads in `folder`, which are read at once: they take a few megabytes.

    Raises `OperatorError` for files that cannot be read.
    """

    def __init__(self, source: TensorSource, folder: Path) -> None:
        self._source = source
        self._heads = {
            name: RawTensor(
                name,
                np.frombuffer(tensor.data, np.uint8),
                tensor.dtype,
                tensor.shape,
                file=folder / f"{name.partition('.')[0]}.pt",
            )
            for name, tensor in head_tensors(folder).items()
        }

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return {*self._source.names(), *self._heads}

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor of numbers. Raises `OperatorError` as the source does."""
        return self._heads.get(name) or self._source.tensor(name)

    def part(self, name: str) -> RawTensor:
        """Return a tensor of a quantized matrix. Raises `OperatorError` as the source does."""
        return self._source.part(name)

    def release(self, tensor: RawTensor) -> None:
        """Mark the tensor as not needed for now. The heads stay in memory."""
        if tensor.name not in self._heads:
            self._source.release(tensor)
