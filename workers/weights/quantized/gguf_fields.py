"""Fields of GGUF's blocks."""

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.weights.quantized.coded import Codes, Floats

Blocks = npt.NDArray[np.uint8]  # [rows, blocks, bytes]


def half(name: str, blocks: Blocks, at: int) -> Floats:
    """Return the fp16 at byte `at` of each block, [rows, blocks]. Raises `OperatorError` for one that is no number."""
    values = np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16)[:, :, 0].astype(np.float32)
    if not np.isfinite(values).all():
        raise OperatorError(f"tensor {name} holds scales that are not finite; fetch the file again")
    return values


def flat(codes: Codes) -> Codes:
    """Return codes [rows, ..] as [rows, columns]."""
    return codes.reshape(codes.shape[0], -1)
