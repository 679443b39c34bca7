"""safetensors checkpoints: one file, or several with an index."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.mapped import MappedFile, ReadFiles
from numaserve.workers.models.config.safetensors_files import SafetensorsFile
from numaserve.workers.weights.source import DType, RawTensor

_DTYPES: dict[str, DType] = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
_CODES: dict[str, DType] = {"U8": "u8", "I8": "i8", "I32": "i32", "I64": "i64", "F8_E4M3": "e4m3"}


class SafetensorsSource:
    """The tensors of a Hugging Face folder. Raises `OperatorError` when it has no safetensors or they are damaged."""

    def __init__(self, files: Iterable[SafetensorsFile]) -> None:
        self._where: dict[str, Path] = {}
        self._files: dict[Path, _File] = {}
        self._read = ReadFiles()
        for file in files:
            self._add(file.path, _File(file))

    def _add(self, path: Path, file: _File) -> None:
        for name in file.tensors:
            if (other := self._where.setdefault(name, path)) != path:
                raise OperatorError(
                    f"tensor {name[:100]!r} is in both {other} and {path.name}; fetch the checkpoint again"
                )
        self._files[path] = file

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._where.keys()

    def tensor(self, name: str) -> RawTensor:
        """Return the tensor of that name, as a view of the mapped file."""
        return self._view(name, _DTYPES)

    def part(self, name: str) -> RawTensor:
        """Return a tensor of a quantized matrix, as a view of the mapped file."""
        return self._view(name, _DTYPES | _CODES)

    def release(self, tensor: RawTensor) -> None:
        """Mark the tensor as not needed for now."""
        self._read.add(self._files[self._where[tensor.name]].mapped, tensor.data.nbytes)

    def _view(self, name: str, dtypes: dict[str, DType]) -> RawTensor:
        path = self._where[name]
        dtype, shape, data = self._files[path].tensor(name)
        if dtype not in dtypes:
            raise OperatorError(
                f"{path}: tensor {name} is {dtype}; supported types: {', '.join(dtypes)}; "
                "use the model's bf16 checkpoint"
            )
        return RawTensor(name, data, dtypes[dtype], shape, file=path)


class _File:
    """A mapped file."""

    def __init__(self, file: SafetensorsFile) -> None:
        self.tensors, self.mapped = file.tensors, MappedFile(file.mapped)
        self._data = self.mapped.data[file.begin :]

    def tensor(self, name: str) -> tuple[str, tuple[int, ...], npt.NDArray[np.uint8]]:
        """Return type, shape and bytes."""
        about = self.tensors[name]
        begin, end = about["data_offsets"]
        return about["dtype"], tuple(about["shape"]), self._data[begin:end]
