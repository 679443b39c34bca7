"""e4m3 weights, as DeepSeek, Qwen, compressed-tensors (float-quantized) and ModelOpt publish them.

`weight` float8_e4m3fn [N, K] and its scales: `weight_scale_inv` [N / 128, K / 128], each rounded up, one for a block
(DeepSeek's name; despite it, weights are multiplied by this scale); `weight_scale` [N, 1], or one for the whole tensor,
or one for a block, of ModelOpt's [N / 128, 1, K / 128, 1]. weight = scale * value. `input_scale`, a fixed scale of
activations, is left out: activations are not e4m3 here. In MXFP8 (OCP Microscaling Formats) `weight_scale` uint8
[N, K / 32] has the exponents of powers of two plus 127.
"""

import numpy as np
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import Stored
from numaserve.workers.weights.quantized.coded import CodedTensor, Floats
from numaserve.workers.weights.quantized.mxfp4 import powers
from numaserve.workers.weights.quantized.parts import (
    FLOAT_DTYPES,
    Part,
    Parts,
    Tensors,
    fixed_input_scale,
    floats,
    group_count,
    row_scales,
    scale_part,
    whole_group,
)
from numaserve.workers.weights.source import RawTensor

_NAN = 0x7F


def parts(stored: Stored, rows: int, columns: int) -> Parts:
    """The tensors of a matrix."""
    groups = group_count(columns, stored.file_group)
    weight = Part(("e4m3",), ((rows, columns),))
    if stored.layout == "mxfp8":
        return {"weight": weight, stored.scale: Part(("u8",), ((rows, groups),))}
    blocks = -(-rows // stored.block_rows)
    scales = Part(FLOAT_DTYPES, ((blocks, groups), (blocks, 1, groups, 1)))
    return {
        "weight": weight,
        stored.scale: scale_part(rows, groups) if stored.block_rows == 1 else scales,
        "input_scale": fixed_input_scale(),
    }


def decode(stored: Stored, tensors: Tensors, shape: tuple[int, int], rows: range) -> CodedTensor:
    """Rows of a matrix of `shape`. Raises `OperatorError` where a weight is not a number."""
    codes = tensors["weight"].data.reshape(shape)[rows.start : rows.stop]
    if ((codes & _NAN) == _NAN).any():
        raise OperatorError(f"tensor {tensors['weight'].name} holds NaN weights; fetch the checkpoint again")
    scales = _scales(stored, tensors[stored.scale], shape, rows)
    return CodedTensor(tensors["weight"].name, "fp8", codes, scales, whole_group(shape[1], stored.file_group))


def _scales(stored: Stored, tensor: RawTensor, shape: tuple[int, int], rows: range) -> Floats:
    groups = group_count(shape[1], stored.file_group)
    if stored.layout == "mxfp8":
        return powers(tensor.name, tensor.data.reshape(shape[0], groups)[rows.start : rows.stop])
    if stored.block_rows == 1:
        return row_scales(tensor, shape[0], groups)[rows.start : rows.stop]
    of_blocks = floats(tensor).reshape(-1, groups)
    return of_blocks[np.arange(rows.start, rows.stop) // stored.block_rows]
