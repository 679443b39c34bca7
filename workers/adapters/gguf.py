"""Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gguf import ReaderTensor
from numaserve.workers.adapters.low_rank import MAX_ALPHA, AdapterFiles, LowRank
from numaserve.workers.adapters.private_copy import private_copy
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.gguf_file import GGUFFile, open_gguf
from numaserve.workers.models.config.gguf_names import shape_of
from numaserve.workers.weights.gguf_source import DTYPES
from numaserve.workers.weights.source import RawTensor

_A, _B = ".weight.lora_a", ".weight.lora_b"
_PLAIN = {"f32", "f16", "bf16"}


@contextmanager
def open_gguf_adapter(path: Path, limit: int) -> Iterator[AdapterFiles]:
    """Open the adapter in the file at `path`, of at most `limit` bytes. It lasts as long as the context. Raises
    `OperatorError` for another file."""
    with private_copy(path, limit) as copy:
        file = open_gguf(copy.path)
        kind = file.scalar("general.type"), file.scalar("adapter.type")
        if kind != ("adapter", "lora"):
            raise OperatorError(
                f"{path}: not a LoRA adapter (general.type and adapter.type are {kind[0]!r} and {kind[1]!r}); give a "
                "file that convert_lora_to_gguf.py has written"
            )
        yield AdapterFiles(str(path), "gguf", _updates(file, path), copy.digest, copy.nbytes)


def _updates(file: GGUFFile, path: Path) -> dict[str, LowRank]:
    alpha = file.scalar("adapter.lora.alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= MAX_ALPHA:
        raise OperatorError(
            f"{path}: adapter.lora.alpha must be a number of at most {MAX_ALPHA:g}; convert the adapter again"
        )
    tensors = {tensor.name: _raw(file, tensor, path) for tensor in file.tensors}
    updates = {}
    for name, a in tensors.items():
        module = name.removesuffix(_A)
        b = tensors.get(module + _B)
        if name.endswith(_B) and name.removesuffix(_B) + _A in tensors:
            continue
        if not name.endswith(_A) or b is None or len(a.shape) != 2 or not all(a.shape):
            raise OperatorError(
                f"{path}: tensor {name[:200]!r} is not one of a pair of matrices NAME{_A} and NAME{_B}; convert the "
                "adapter again"
            )
        updates[module] = LowRank(a, b, alpha / a.shape[0] if alpha else 1.0)
    return updates


def _raw(file: GGUFFile, tensor: ReaderTensor, path: Path) -> RawTensor:
    dtype = DTYPES.get(tensor.tensor_type)
    if dtype is None or dtype not in _PLAIN:
        raise OperatorError(
            f"{path}: tensor {tensor.name[:200]!r} has the type {tensor.tensor_type.name}; adapters must be F32, F16 "
            "or BF16"
        )
    begin = int(tensor.data_offset)
    data = file.data[begin : begin + int(tensor.n_bytes)]
    return RawTensor(tensor.name, data, dtype, shape_of(tensor), file=path)
