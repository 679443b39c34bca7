"""OCP Microscaling Formats, MXFP4: the experts of gpt-oss, and what compressed-tensors calls mxfp4-pack-quantized.

Codes are e2m1, two in a byte, the low bits first; scales the exponents of powers of two plus 127 (e8m0). weight =
2^(scale - 127) * value. gpt-oss has `blocks` uint8 [N, K / 32, 16] and `scales` uint8 [N, K / 32], compressed-tensors
`weight_packed` uint8 [N, K / 2] and `weight_scale` uint8 [N, K / 32].
"""

import numpy as np
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import Stored
from numaserve.workers.weights.quantized.coded import CodedTensor, Codes, Floats
from numaserve.workers.weights.quantized.nibbles import codes_of_rows
from numaserve.workers.weights.quantized.parts import Part, Parts, Tensors, group_count

_NAMES = {"gpt_oss": ("blocks", "scales"), "mxfp4_packed": ("weight_packed", "weight_scale")}
_NAN = 0xFF
_BLOCK_BYTES = 16
_SMALLEST = np.uint32(1 << 22)  # 2^-127 as fp32 has it, a subnormal


def powers(name: str, exponents: Codes) -> Floats:
    """Return 2^(exponent - 127). Raises `OperatorError` for the exponent that means no number."""
    if (exponents == _NAN).any():
        raise OperatorError(f"tensor {name} holds scales that are not finite; fetch the checkpoint again")
    scales: Floats = np.maximum(exponents.astype(np.uint32) << 23, _SMALLEST).view(np.float32)
    return scales


def parts(stored: Stored, rows: int, columns: int) -> Parts:
    """The tensors of a matrix."""
    codes, scales = _NAMES[stored.layout]
    groups = group_count(columns, stored.group)
    shape = (rows, groups, _BLOCK_BYTES) if stored.layout == "gpt_oss" else (rows, groups * _BLOCK_BYTES)
    return {codes: Part(("u8",), (shape,)), scales: Part(("u8",), ((rows, groups),))}


def decode(stored: Stored, tensors: Tensors, shape: tuple[int, int], rows: range) -> CodedTensor:
    """Return rows of a matrix of `shape`, which may be apart. Raises `OperatorError` where a scale is no number."""
    packed, exponents = (tensors[name] for name in _NAMES[stored.layout])
    chosen = np.s_[rows.start : rows.stop : rows.step]
    scales = powers(exponents.name, exponents.data.reshape(shape[0], -1)[chosen])
    codes = codes_of_rows(packed.data.view("<u4").reshape(shape[0], -1)[chosen], stored.bits)[:, : shape[1]]
    return CodedTensor(packed.name, "mxfp4", codes, scales, stored.group)
