"""GGUF checkpoints, their tensors under Hugging Face's names."""

from collections.abc import Collection
from dataclasses import dataclass

from gguf import GGMLQuantizationType, ReaderTensor
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.mapped import ReadFiles
from numaserve.workers.models.config.gguf_names import GgufNames, shape_of
from numaserve.workers.models.config.gguf_parts import GGUFModel, GGUFPart
from numaserve.workers.weights.source import DType, RawTensor

DTYPES: dict[GGMLQuantizationType, DType] = {
    GGMLQuantizationType.F32: "f32",
    GGMLQuantizationType.F16: "f16",
    GGMLQuantizationType.BF16: "bf16",
    GGMLQuantizationType.Q8_0: "q8_0",
    GGMLQuantizationType.Q4_0: "q4_0",
    GGMLQuantizationType.Q4_1: "q4_1",
    GGMLQuantizationType.Q5_0: "q5_0",
    GGMLQuantizationType.Q5_1: "q5_1",
    GGMLQuantizationType.Q2_K: "q2_k",
    GGMLQuantizationType.Q3_K: "q3_k",
    GGMLQuantizationType.Q4_K: "q4_k",
    GGMLQuantizationType.Q5_K: "q5_k",
    GGMLQuantizationType.Q6_K: "q6_k",
    GGMLQuantizationType.IQ4_NL: "iq4_nl",
    GGMLQuantizationType.IQ4_XS: "iq4_xs",
    GGMLQuantizationType.IQ3_XXS: "iq3_xxs",
    GGMLQuantizationType.IQ3_S: "iq3_s",
    GGMLQuantizationType.IQ2_XXS: "iq2_xxs",
    GGMLQuantizationType.IQ2_XS: "iq2_xs",
    GGMLQuantizationType.IQ2_S: "iq2_s",
    GGMLQuantizationType.MXFP4: "mxfp4",
}
_ROPE_TABLES = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


@dataclass(frozen=True)
class _Part:
    """A tensor, or a part of the tensor that holds `count` experts in the file."""

    tensor: ReaderTensor
    where: GGUFPart
    shape: tuple[int, ...]
    index: int = 0
    count: int = 1


class GGUFSource:
    """The tensors of a GGUF model, found by `names`."""

    def __init__(self, model: GGUFModel, names: GgufNames) -> None:
        self._read = ReadFiles()
        self._tensors: dict[str, _Part] = {}
        self._files = {part.path: part.file for part in model.files}
        for tensor, where in model.tensors:
            if tensor.name in _ROPE_TABLES:  # read with the configuration
                continue
            found, shape = names.find(tensor.name, shape_of(tensor))
            for index, name in enumerate(found):
                self._tensors[name] = _Part(tensor, where, shape, index, len(found))

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._tensors.keys()

    def tensor(self, name: str) -> RawTensor:
        """Return the tensor of that name, as a view of the mapped file."""
        part = self._tensors[name]
        found = part.tensor
        if found.tensor_type not in DTYPES:
            raise OperatorError(
                f"{part.where.path}: tensor {found.name} has type {found.tensor_type.name}; supported types: "
                f"{', '.join(kind.name for kind in DTYPES)}; use a file with these types"
            )
        nbytes = int(found.n_bytes) // part.count
        begin = int(found.data_offset) + part.index * nbytes
        data = part.where.file.data[begin : begin + nbytes]
        return RawTensor(found.name, data, DTYPES[found.tensor_type], part.shape, file=part.where.path)

    def part(self, name: str) -> RawTensor:
        """Return the tensor of that name: a GGUF file keeps a matrix in one tensor."""
        return self.tensor(name)

    def release(self, tensor: RawTensor) -> None:
        """Mark the tensor as not needed for now."""
        if tensor.file is not None:
            self._read.add(self._files[tensor.file].mapped, tensor.data.nbytes)
