"""An adapter of either kind of file, opened and bound to a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numaserve.workers.adapters.binding import Binding, bind
from numaserve.workers.adapters.low_rank import AdapterFiles
from numaserve.workers.adapters.peft import CONFIG, open_peft
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.source import RawTensor, as_float32

Bits = npt.NDArray[np.uint16]
_HEADER_BYTES = 4 << 20  # names and shapes of some thousand tensors
_FP32 = 4
_EXPONENT = np.uint16(0x7F80)


@dataclass(frozen=True)
class OpenAdapter:
    """The files of an adapter, and what it does to each matrix."""

    files: AdapterFiles
    binding: Binding


@contextmanager
def open_adapter(path: Path, config: ModelConfig, settings: ModelSettings) -> Iterator[OpenAdapter]:
    """Open the adapter at `path`, a folder or a .gguf file, for a model. It lasts as long as the context.

    Raises `OperatorError` for an adapter that cannot be applied whole.
    """
    limit = _limit(config, settings.max_lora_rank)
    if path.suffix == ".gguf" and path.is_file():
        # The reader of GGUF files is imported for such files only: see `models/load.py`.
        from numaserve.workers.adapters.gguf import open_gguf_adapter  # noqa: PLC0415

        opened = open_gguf_adapter(path, limit)
    elif path.is_dir():
        opened = open_peft(path, limit)
    else:
        raise OperatorError(
            f"{path}: not an adapter; give a folder that holds {CONFIG}, as PEFT writes it, or a .gguf file"
        )
    with opened as files:
        yield OpenAdapter(files, bind(files, config, settings.max_lora_rank))


def bits_of(tensor: RawTensor, where: str) -> Bits:
    """Return the values of a tensor in bf16, as bits of its shape. Raises `OperatorError` for values that are not
    finite numbers in bf16."""
    if tensor.dtype == "bf16":
        bits = tensor.data.view(np.uint16)
    else:
        whole = as_float32(tensor).view(np.uint32)
        # Rounded to nearest even. The sum of a NaN may leave the NaNs, but none that PyTorch or NumPy write.
        bits = ((whole + (np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(
            np.uint16
        )
    if ((bits & _EXPONENT) == _EXPONENT).any():
        raise OperatorError(
            f"{where}: tensor {tensor.name} has values that are not finite numbers in bf16; train the adapter again"
        )
    return bits.reshape(tensor.shape)


def _limit(config: ModelConfig, max_rank: int) -> int:
    """The most bytes of the weights of an adapter: in fp32, of the largest rank, for each matrix."""
    return _HEADER_BYTES + _FP32 * max_rank * config.decoder.adapted_lines
