"""GPTQ's layout, as AutoGPTQ, GPTQModel and AutoRound write it.

For a matrix of N out features and K in features: `qweight` int32 [K * bits / 32, N], codes packed along K; `qzeros`
int32 [groups, N * bits / 32], zero points packed along N; `scales` [groups, N]; `g_idx` int32 [K], the group of each
in feature, out of order with act-order. weight = scale * (code - zero). checkpoint_format "gptq" stores zero points
minus one: GPTQModel undoes that by adding one to each field of a packed word, and the carry of a field goes to the
next one just as the borrow came from there (of 3 bits, which lie across words, it adds one to each field alone);
"gptq_v2" and AutoRound's own packing store them as they are.
"""

import numpy as np
from numaserve.workers.layers.stored import Stored
from numaserve.workers.weights.quantized.act_order import by_column, check_order
from numaserve.workers.weights.quantized.coded import CodedTensor
from numaserve.workers.weights.quantized.nibbles import codes_of_rows, word_count
from numaserve.workers.weights.quantized.parts import (
    FLOAT_DTYPES,
    Part,
    Parts,
    Tensors,
    floats,
    group_count,
    whole_group,
    words,
    zero_points,
)

_ONES = {2: 0x55555555, 3: 0, 4: 0x11111111, 8: 0x01010101}
_INT4_ZERO = 8


def parts(stored: Stored, rows: int, columns: int) -> Parts:
    """The tensors of a matrix."""
    groups = group_count(columns, stored.file_group)
    return {
        "qweight": Part(("i32",), ((word_count(columns, stored.bits), rows),)),
        "qzeros": Part(("i32",), ((groups, word_count(rows, stored.bits)),)),
        "scales": Part(FLOAT_DTYPES, ((groups, rows),)),
        "g_idx": Part(("i32",), ((columns,),), required=stored.reordered),
    }


def decode(stored: Stored, tensors: Tensors, rows: range) -> CodedTensor:
    """Return rows of the matrix. Raises `OperatorError` for a g_idx that contradicts the configuration."""
    qweight = words(tensors["qweight"])
    columns = qweight.shape[0] * 32 // stored.bits
    codes = codes_of_rows(qweight[:, rows.start : rows.stop].T, stored.bits)
    packed = words(tensors["qzeros"])
    if stored.layout == "gptq":
        packed = packed + np.uint32(_ONES[stored.bits])
    zeros = codes_of_rows(packed, stored.bits)[:, rows.start : rows.stop].T
    if stored.layout == "gptq" and stored.bits == 3:
        zeros = zeros + np.uint8(1) & np.uint8(7)
    scales = np.ascontiguousarray(floats(tensors["scales"])[:, rows.start : rows.stop].T)
    name, group = tensors["qweight"].name, whole_group(columns, stored.file_group)
    if stored.reordered:
        return by_column(name, codes, scales, zeros.astype(np.float32), tensors["g_idx"])
    if "g_idx" in tensors:
        check_order(tensors["g_idx"], group)
    offsets = zero_points(stored, tensors["qzeros"], zeros)
    if offsets is None and stored.file_codes == "int4":
        codes += np.uint8(_INT4_ZERO - (1 << (stored.bits - 1)))  # codes of fewer bits lie around another middle
    return CodedTensor(name, stored.file_codes, codes, scales, group, offsets)
