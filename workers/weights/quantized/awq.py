"""AWQ's layout, version "gemm", as AutoAWQ and AutoRound write it.

For a matrix of N out features and K in features: `qweight` int32 [K, N / 8], `qzeros` int32 [groups, N / 8], both
packed along N; `scales` [groups, N]. Field i of a word, lowest bits first, holds out feature 0, 2, 4, 6, 1, 3, 5 or 7
of its eight. weight = scale * (code - zero).
"""

import numpy as np
from numaserve.workers.layers.stored import Stored
from numaserve.workers.weights.quantized.coded import CodedTensor, Codes
from numaserve.workers.weights.quantized.nibbles import Words
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

_FIELDS = 8
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def parts(stored: Stored, rows: int, columns: int) -> Parts:
    """The tensors of a matrix."""
    groups, packed = group_count(columns, stored.file_group), -(-rows // _FIELDS)
    return {
        "qweight": Part(("i32",), ((columns, packed),)),
        "qzeros": Part(("i32",), ((groups, packed),)),
        "scales": Part(FLOAT_DTYPES, ((groups, rows),)),
    }


def decode(stored: Stored, tensors: Tensors, rows: range) -> CodedTensor:
    """Rows of the matrix."""
    qweight = words(tensors["qweight"])
    scales = np.ascontiguousarray(floats(tensors["scales"])[:, rows.start : rows.stop].T)
    zeros = zero_points(stored, tensors["qzeros"], _transposed(words(tensors["qzeros"]), rows))
    group = whole_group(qweight.shape[0], stored.file_group)
    return CodedTensor(tensors["qweight"].name, "int4", _transposed(qweight, rows), scales, group, zeros)


def _transposed(packed: Words, rows: range) -> Codes:
    """Return codes of words [columns, words] as [rows, columns]."""
    first = rows.start // _FIELDS
    # Transposed while eight codes are still one word: a transposition of bytes costs eight times as much.
    turned = np.ascontiguousarray(packed[:, first : -(-rows.stop // _FIELDS)].T)
    codes = np.empty((turned.shape[0], _FIELDS, turned.shape[1]), np.uint8)
    for field, feature in enumerate(_ORDER):
        np.bitwise_and(turned >> np.uint32(4 * field), 15, out=codes[:, feature], casting="unsafe")
    skip = rows.start - first * _FIELDS
    return codes.reshape(-1, turned.shape[1])[skip : skip + len(rows)]
