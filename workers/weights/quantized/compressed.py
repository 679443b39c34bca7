"""The layouts of compressed-tensors, which llm-compressor writes, with integer codes.

pack-quantized: `weight_packed` int32 [N, K * bits / 32 rounded up], codes plus 8 (128 of 8 bits) packed along K, lowest
bits first; `weight_scale` [N, groups]; where asymmetric `weight_zero_point` int32 [N * bits / 32 rounded up, groups],
zero points plus 8 packed along N; `weight_shape` [2]; with actorder "group" `weight_g_idx` int32 [K], the group of each
in feature. int-quantized: `weight` int8 [N, K], of 4 bits too, `weight_scale`, and `weight_zero_point` int8
[N, groups] where asymmetric; `input_scale` and `input_zero_point` of activations, which are left out. weight = scale *
(code - zero). From compressed_tensors' compressors/quantized_compressors.
"""

import numpy as np
from numaserve.workers.layers.stored import Stored
from numaserve.workers.weights.quantized.act_order import by_column
from numaserve.workers.weights.quantized.coded import CodedTensor
from numaserve.workers.weights.quantized.nibbles import codes_of_rows
from numaserve.workers.weights.quantized.parts import (
    Part,
    Parts,
    Tensors,
    fixed_input_scale,
    group_count,
    row_scales,
    scale_part,
    whole_group,
    words,
)

_SIGN = np.uint8(0x80)


def packed_parts(stored: Stored, rows: int, columns: int) -> Parts:
    """The tensors of a pack-quantized matrix."""
    fields, groups = 32 // stored.bits, group_count(columns, stored.file_group)
    found = {
        "weight_packed": Part(("i32",), ((rows, -(-columns // fields)),)),
        "weight_scale": scale_part(rows, groups),
        "weight_shape": Part(("i64", "i32"), ((2,),), required=False),
    }
    if not stored.symmetric:
        found["weight_zero_point"] = Part(("i32",), ((-(-rows // fields), groups),))
    if stored.reordered:
        found["weight_g_idx"] = Part(("i32",), ((columns,),))
    return found


def decode_packed(stored: Stored, tensors: Tensors, shape: tuple[int, int], rows: range) -> CodedTensor:
    """Rows of a pack-quantized matrix of `shape`. Raises `OperatorError` for groups that are not there."""
    columns = shape[1]
    groups = group_count(columns, stored.file_group)
    packed = words(tensors["weight_packed"])
    codes = codes_of_rows(packed[rows.start : rows.stop], stored.bits)[:, :columns]
    scales = row_scales(tensors["weight_scale"], shape[0], groups)[rows.start : rows.stop]
    zeros = None
    if not stored.symmetric:
        packed = words(tensors["weight_zero_point"])
        zeros = codes_of_rows(packed.T, stored.bits)[:, rows.start : rows.stop].T.astype(np.float32)
    name = tensors["weight_packed"].name
    if stored.reordered:
        middle = float(1 << (stored.bits - 1))
        return by_column(name, codes, scales, middle if zeros is None else zeros, tensors["weight_g_idx"])
    return CodedTensor(name, stored.file_codes, codes, scales, whole_group(columns, stored.file_group), zeros)


def int8_parts(stored: Stored, rows: int, columns: int) -> Parts:
    """The tensors of an int-quantized matrix."""
    groups = group_count(columns, stored.file_group)
    found = {"weight": Part(("i8",), ((rows, columns),)), "weight_scale": scale_part(rows, groups)}
    found["input_scale"] = fixed_input_scale()
    found["input_zero_point"] = Part(("i8",), fixed_input_scale().shapes, required=False)
    if not stored.symmetric:
        found["weight_zero_point"] = Part(("i8",), scale_part(rows, groups).shapes)
    return found


def decode_int8(stored: Stored, tensors: Tensors, shape: tuple[int, int], rows: range) -> CodedTensor:
    """Rows of an int-quantized matrix of `shape`."""
    groups = group_count(shape[1], stored.file_group)
    codes = tensors["weight"].data.reshape(shape)[rows.start : rows.stop]
    scales = row_scales(tensors["weight_scale"], shape[0], groups)[rows.start : rows.stop]
    name, group = tensors["weight"].name, whole_group(shape[1], stored.file_group)
    if stored.native == "int8":
        return CodedTensor(name, "int8", codes, scales, group)
    zeros = None
    if not stored.symmetric:
        signed = tensors["weight_zero_point"].data.view(np.int8).astype(np.float32) + np.float32(128)
        zeros = np.broadcast_to(signed.reshape(-1, groups), (shape[0], groups))[rows.start : rows.stop]
    return CodedTensor(name, "int8_group", codes ^ _SIGN, scales, group, zeros)
