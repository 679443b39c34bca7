"""GGUF checkpoints, their tensors under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gguf import GGMLQuantizationType, ReaderTensor
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.family import Family
from numaserve.workers.weights.gguf_file import open_gguf, shape_of
from numaserve.workers.weights.gguf_names import expert_names, hugging_face_name
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
    GGMLQuantizationType.MXFP4: "mxfp4",
}
_ROPE_TABLES = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


@dataclass(frozen=True)
class _Part:
    """A tensor, or the part of one of `count` experts that are one tensor in the file."""

    tensor: ReaderTensor
    shape: tuple[int, ...]
    index: int = 0
    count: int = 1


def _matrix_shape(name: str, shape: tuple[int, ...], family: Family) -> tuple[int, ...]:
    """The shape of what is a matrix elsewhere, and of other tensors the one that they have."""
    module, latent = name.removesuffix(".weight"), family.mla_names
    # The shared expert's gate is a matrix of one row, which a converter flattens.
    if module.endswith(f".{family.moe_names.shared_gate}") and len(shape) == 1:
        return (1, *shape)
    # Of what expands latents, each head's is a matrix of its own.
    if module.endswith((f".{latent.k_b}", f".{latent.v_b}")) and len(shape) == 3:
        return (shape[0] * shape[1], shape[2])
    return shape


class GGUFSource:
    """The tensors of a .gguf file of `family`. Raises `OperatorError` when the file is damaged."""

    def __init__(self, path: Path, family: Family) -> None:
        self._path = path
        self._file = open_gguf(path)
        self._read = ReadFiles()
        # llama.cpp rotates neighbouring dimensions in this architecture only; its converter permutes q and k for it.
        self.interleaved_rope = self._file.scalar("general.architecture") == "llama"
        self._tensors: dict[str, _Part] = {}
        for tensor in self._file.tensors:
            if tensor.name in _ROPE_TABLES:  # read with the configuration
                continue
            shape = shape_of(tensor)
            experts = expert_names(tensor.name, shape, family)
            for index, name in enumerate(experts):
                self._tensors[name] = _Part(tensor, shape[1:], index, len(experts))
            if not experts:
                name = hugging_face_name(tensor.name, family)
                self._tensors[name] = _Part(tensor, _matrix_shape(name, shape, family))

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._tensors.keys()

    def tensor(self, name: str) -> RawTensor:
        """The tensor of that name, as a view of the mapped file."""
        part = self._tensors[name]
        found = part.tensor
        if found.tensor_type not in _DTYPES:
            raise OperatorError(
                f"{self._path}: tensor {found.name} is {found.tensor_type.name}; supported are "
                f"{', '.join(kind.name for kind in _DTYPES)}: choose a file with one of these"
            )
        nbytes = int(found.n_bytes) // part.count
        begin = int(found.data_offset) + part.index * nbytes
        data = self._file.data[begin : begin + nbytes]
        return RawTensor(found.name, data, _DTYPES[found.tensor_type], part.shape, file=self._path)

    def part(self, name: str) -> RawTensor:
        """The same: a GGUF file keeps a matrix in one tensor."""
        return self.tensor(name)

    def release(self, tensor: RawTensor) -> None:
        """Say that the tensor is not needed for now."""
        self._read.add(self._file.mapped, tensor.data.nbytes)
