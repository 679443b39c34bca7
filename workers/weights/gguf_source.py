"""GGUF checkpoints, their tensors under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.family import Family
from numaserve.workers.weights.gguf_file import open_gguf
from numaserve.workers.weights.gguf_names import hugging_face_name
from numaserve.workers.weights.mapped import ReadFiles
from numaserve.workers.weights.source import DType, RawTensor

_DTYPES: dict[GGMLQuantizationType, DType] = {
    GGMLQuantizationType.F32: "f32",
    GGMLQuantizationType.F16: "f16",
    GGMLQuantizationType.BF16: "bf16",
    GGMLQuantizationType.Q8_0: "q8_0",
    GGMLQuantizationType.Q4_0: "q4_0",
    GGMLQuantizationType.Q4_1: "q4_1",
    GGMLQuantizationType.Q5_0: "q5_0",
    GGMLQuantizationType.Q5_1: "q5_1",
    GGMLQuantizationType.Q4_K: "q4_k",
    GGMLQuantizationType.Q5_K: "q5_k",
    GGMLQuantizationType.Q6_K: "q6_k",
}
_ROPE_TABLES = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


class GGUFSource:
    """The tensors of a .gguf file of `family`. Raises `OperatorError` when the file is damaged."""

    def __init__(self, path: Path, family: Family) -> None:
        self._path = path
        self._file = open_gguf(path)
        self._read = ReadFiles()
        # llama.cpp rotates neighbouring dimensions in this architecture only; its converter permutes q and k for it.
        self.interleaved_rope = family.gguf_architecture == "llama"
        self._tensors = {
            hugging_face_name(tensor.name, family.names): tensor
            for tensor in self._file.tensors
            if tensor.name not in _ROPE_TABLES  # read with the configuration
        }

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._tensors.keys()

    def tensor(self, name: str) -> RawTensor:
        """The tensor of that name, as a view of the mapped file."""
        found = self._tensors[name]
        if found.tensor_type not in _DTYPES:
            raise OperatorError(
                f"{self._path}: tensor {found.name} is {found.tensor_type.name}; supported are "
                f"{', '.join(kind.name for kind in _DTYPES)}: choose a file with one of these"
            )
        data = self._file.data[found.data_offset : found.data_offset + found.n_bytes]
        shape = tuple(int(dim) for dim in reversed(found.shape))
        return RawTensor(found.name, np.asarray(data), _DTYPES[found.tensor_type], shape)

    def part(self, name: str) -> RawTensor:
        """The same: a GGUF file keeps a matrix in one tensor."""
        return self.tensor(name)

    def release(self, tensor: RawTensor) -> None:
        """Say that the tensor is not needed for now."""
        self._read.add(self._file.mapped, tensor.data.nbytes)
