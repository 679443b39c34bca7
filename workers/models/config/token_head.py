"""The heads of single tokens that a model has in files of torch next to its checkpoint, as BGE-M3 has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import is_there
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.token_head import VECTORS, WEIGHTS, TokenHead
from numaserve.workers.models.config.torch_file import TorchTensor, read_torch_file

if TYPE_CHECKING:
    from numaserve.workers.models.spec import ModelConfig

_MOST_VECTOR_COLUMNS = 1 << 14


def read_token_head(folder: Path, config: ModelConfig) -> TokenHead | None:
    """Return the head of an encoder in `folder`; None for a model without any of the files.

    Raises `OperatorError` for a file that cannot be read, and for a layer that does not fit the model.
    """
    # A prompt is whole in a step of a bidirectional model alone, and hidden states after an RMS norm are not kept.
    if not config.bidirectional or isinstance(config.decoder.norm, Norm):
        return None
    found = head_tensors(folder)
    if not found:
        return None
    vectors, weights = found.get(f"{VECTORS}.weight"), found.get(f"{WEIGHTS}.weight")
    hidden, columns = config.hidden_size, 0
    if vectors is not None:
        columns = vectors.shape[0]
        if not 0 < columns <= _MOST_VECTOR_COLUMNS:
            raise _error(folder, VECTORS, f"it has vectors of {columns} columns (limit {_MOST_VECTOR_COLUMNS})")
    expected = {VECTORS: columns} if vectors is not None else {}
    for module, rows in (expected | ({WEIGHTS: 1} if weights is not None else {})).items():
        shape = found[f"{module}.weight"].shape
        if shape != (rows, hidden):
            raise _error(folder, module, f"its weight has shape {list(shape)}, and the model needs [{rows}, {hidden}]")
    return TokenHead(hidden, columns, has_weights=weights is not None)


def head_tensors(folder: Path) -> dict[str, TorchTensor]:
    """Return the tensors of all such files in `folder`, by the module and "weight" or "bias". Raises `OperatorError`
    for a file that cannot be read, and for one that holds something other than a linear layer."""
    tensors: dict[str, TorchTensor] = {}
    for module in (VECTORS, WEIGHTS):
        path = folder / f"{module}.pt"
        if not folder.is_dir() or not is_there(path):
            continue
        found = read_torch_file(path)
        dimensions = {name: len(tensor.shape) for name, tensor in found.items()}
        if dimensions != {"weight": 2, "bias": 1}:
            raise _error(folder, module, "it does not hold the weight and the bias of a linear layer")
        tensors |= {f"{module}.{name}": tensor for name, tensor in found.items()}
    return tensors


def _error(folder: Path, module: str, reason: str) -> OperatorError:
    path = folder / f"{module}.pt"
    return OperatorError(f"{path}: {reason}. Download the file again, or remove it to serve the model without it")
