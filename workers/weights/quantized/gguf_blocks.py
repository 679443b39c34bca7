"""GGUF's block formats (ggml-common.h and ggml-quants.c of llama.cpp), decoded block by block over whole matrices.

Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32 columns with a scale d in fp16. Q4_K, Q5_K, Q6_K: blocks of 256, with a d
(and dmin) in fp16 for all and 6-bit scales and minima (8-bit scales in Q6_K) for 32 (16 in Q6_K) columns each. Q2_K,
Q3_K: the same with 4-bit scales and minima, or 6-bit scales, for 16 columns each.
IQ4_NL: blocks of 32 with a d, codes by a table; IQ4_XS: the same in blocks of 256, with a d and 6-bit scales for 32.
MXFP4: blocks of 32, the exponent of a power of two, then e2m1 codes. Formats of grids are in gguf_grids.py.
"""

from collections.abc import Callable

import numpy as np
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import CodeFormat
from numaserve.workers.weights.quantized.coded import CodedTensor, Codes, Floats
from numaserve.workers.weights.quantized.gguf_fields import Blocks, flat, half
from numaserve.workers.weights.quantized.gguf_grids import iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs
from numaserve.workers.weights.quantized.mxfp4 import powers
from numaserve.workers.weights.source import RawTensor

_SIGN = np.uint8(0x80)
_LOW = np.uint8(0x0F)


def decode(tensor: RawTensor, rows: range) -> CodedTensor:
    """Rows of a matrix. Raises `OperatorError` where rows are not whole blocks, or a scale is not finite."""
    columns, block_bytes, decoder = _DECODERS[tensor.dtype]
    if tensor.shape[1] % columns:
        raise OperatorError(
            f"tensor {tensor.name} has rows of {tensor.shape[1]} columns, not a multiple of {columns};"
            " fetch the file again"
        )
    row_bytes = tensor.shape[1] // columns * block_bytes
    data = np.asarray(tensor.data[rows.start * row_bytes : rows.stop * row_bytes])
    return decoder(tensor.name, data.reshape(len(rows), tensor.shape[1] // columns, block_bytes))


def _halves(nibbles: Blocks) -> Codes:
    """Return the nibbles of bytes whose low nibbles are the first half of some columns and high nibbles the second; the
    last dimension doubles."""
    return np.concatenate([nibbles & _LOW, nibbles >> 4], axis=-1)


def _q8_0(name: str, blocks: Blocks) -> CodedTensor:
    return CodedTensor(name, "int8_group", flat(blocks[:, :, 2:] ^ _SIGN), half(name, blocks, 0), 32)


def _q4_0(name: str, blocks: Blocks) -> CodedTensor:
    return CodedTensor(name, "int4", flat(_halves(blocks[:, :, 2:])), half(name, blocks, 0), 32)


def _q4_1(name: str, blocks: Blocks) -> CodedTensor:
    return _with_minimum(name, "int4", _halves(blocks[:, :, 4:]), half(name, blocks, 0), half(name, blocks, 2))


def _five_bits(high: Blocks, nibbles: Blocks) -> Codes:
    """Return codes of five bits: bit i of the four bytes `high` is the fifth bit of code i."""
    bits = np.unpackbits(high, axis=-1, bitorder="little")
    return _halves(nibbles) | bits << np.uint8(4)


def _q5_0(name: str, blocks: Blocks) -> CodedTensor:
    # Codes 0..31 around 16, moved to lie around 128.
    codes = _five_bits(blocks[:, :, 2:6], blocks[:, :, 6:]) + np.uint8(112)
    return CodedTensor(name, "int8_group", flat(codes), half(name, blocks, 0), 32)


def _q5_1(name: str, blocks: Blocks) -> CodedTensor:
    codes = _five_bits(blocks[:, :, 4:8], blocks[:, :, 8:])
    return _with_minimum(name, "int8_group", codes, half(name, blocks, 0), half(name, blocks, 2))


def _with_minimum(name: str, format: CodeFormat, codes: Codes, scales: Floats, minima: Floats) -> CodedTensor:
    return CodedTensor(name, format, flat(codes), scales, 32, minima, offsets_are_zeros=False)


def _scales_and_minima(name: str, blocks: Blocks) -> tuple[Floats, Floats]:
    """Return scales and minima of blocks of 256 of Q4_K or Q5_K, both [rows, 8 * blocks].

    Twelve bytes at 4: the low six bits of bytes 0..3 are scales 0..3, those of 4..7 minima 0..3. Scales and minima 4..7
    have their low four bits in the nibbles of bytes 8..11, and their high two on top of bytes 0..3 and 4..7.
    """
    low, minimum, rest = blocks[:, :, 4:8], blocks[:, :, 8:12], blocks[:, :, 12:16]
    scales = np.concatenate([low & 63, (rest & _LOW) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([minimum & 63, (rest >> 4) | (minimum >> 6 << 4)], axis=-1)
    shape = (blocks.shape[0], -1)
    return (
        (scales * half(name, blocks, 0)[:, :, None]).reshape(shape),
        (minima * -half(name, blocks, 2)[:, :, None]).reshape(shape),
    )


def _quarters(octets: Blocks) -> Codes:
    """Return the codes of bytes whose four pairs of bits are of 32 columns each, 32 bytes for 128 columns: [rows,
    blocks, 16, 16]."""
    pairs = octets.reshape(*octets.shape[:2], 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    return pairs.reshape(*octets.shape[:2], 16, 16)


def _q2_k(name: str, blocks: Blocks) -> CodedTensor:
    """Decode Q2_K: sixteen bytes of scales in the low four bits and minima in the others, then the codes."""
    shape = (blocks.shape[0], -1)
    scales = (blocks[:, :, :16] & _LOW) * half(name, blocks, 80)[:, :, None]
    minima = (blocks[:, :, :16] >> 4) * -half(name, blocks, 82)[:, :, None]
    codes = flat(_quarters(blocks[:, :, 16:80]))
    return CodedTensor(
        name, "int8_group", codes, scales.reshape(shape), 16, minima.reshape(shape), offsets_are_zeros=False
    )


def _q3_k(name: str, blocks: Blocks) -> CodedTensor:
    """Decode Q3_K: 32 bytes of high bits, the low bits of the codes, then scales around 32. Eight bytes have the low
    four bits of two scales each, four bytes the high bits of four."""
    shape = blocks.shape[:2]
    low, high = blocks[:, :, 96:104], blocks[:, :, None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    scales = (_halves(low) | (high & np.uint8(3)).reshape(*shape, 16) << np.uint8(4)).astype(np.int16) - 32
    high = blocks[:, :, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    codes = (_quarters(blocks[:, :, 32:96]) | (high << 2).reshape(*shape, 16, 16)).astype(np.int16) - 4
    # Products lie between -124 and 128: 128 minus the product is a code of 8 bits.
    products = (128 - scales[..., None] * codes).astype(np.uint8)
    return CodedTensor(name, "int8_group", flat(products), -half(name, blocks, 108), 256)


def _q4_k(name: str, blocks: Blocks) -> CodedTensor:
    nibbles = blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 32)
    return _with_minimum(name, "int4", _halves(nibbles), *_scales_and_minima(name, blocks))


def _q5_k(name: str, blocks: Blocks) -> CodedTensor:
    high, nibbles = blocks[:, :, None, 16:48], blocks[:, :, 48:].reshape(*blocks.shape[:2], 4, 32)
    codes = np.empty((*blocks.shape[:2], 8, 32), np.uint8)
    codes[:, :, 0::2], codes[:, :, 1::2] = nibbles & _LOW, nibbles >> 4
    codes |= (high >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    return _with_minimum(name, "int8_group", codes, *_scales_and_minima(name, blocks))


def _q6_k(name: str, blocks: Blocks) -> CodedTensor:
    shape = blocks.shape[:2]
    low, high = blocks[:, :, :128].reshape(*shape, 2, 64), blocks[:, :, 128:192].reshape(*shape, 2, 1, 32)
    codes = _halves(low).reshape(*shape, 2, 4, 32)
    codes |= (high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3) << 4
    scales = blocks[:, :, 192:208].view(np.int8) * half(name, blocks, 208)[:, :, None]
    # Codes 0..63 around 32, moved to lie around 128.
    return CodedTensor(name, "int8_group", flat(codes + np.uint8(96)), scales.reshape(shape[0], -1), 16)


def _iq4_nl(name: str, blocks: Blocks) -> CodedTensor:
    return CodedTensor(name, "iq4", flat(_halves(blocks[:, :, 2:])), half(name, blocks, 0), 32)


def _iq4_xs(name: str, blocks: Blocks) -> CodedTensor:
    """Decode IQ4_XS: bytes 4..7 have the low four bits of eight scales around 32, those at 2 and 3 two more of each."""
    shape = blocks.shape[:2]
    low, high = blocks[:, :, 4:8, None], np.ascontiguousarray(blocks[:, :, 2:4]).view(np.uint16)
    low = (low >> np.array([0, 4], np.uint8) & _LOW).reshape(*shape, 8)
    high = high >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    scales = ((low | high << 4).astype(np.float32) - 32) * half(name, blocks, 0)[:, :, None]
    codes = _halves(blocks[:, :, 8:].reshape(*shape, 8, 16))
    return CodedTensor(name, "iq4", flat(codes), scales.reshape(shape[0], -1), 32)


def _mxfp4(name: str, blocks: Blocks) -> CodedTensor:
    return CodedTensor(name, "mxfp4", flat(_halves(blocks[:, :, 1:])), powers(name, blocks[:, :, 0]), 32)


# Columns and bytes of a block.
_DECODERS: dict[str, tuple[int, int, Callable[[str, Blocks], CodedTensor]]] = {
    "q8_0": (32, 34, _q8_0),
    "q4_0": (32, 18, _q4_0),
    "q4_1": (32, 20, _q4_1),
    "q5_0": (32, 22, _q5_0),
    "q5_1": (32, 24, _q5_1),
    "q2_k": (256, 84, _q2_k),
    "q3_k": (256, 110, _q3_k),
    "q4_k": (256, 144, _q4_k),
    "q5_k": (256, 176, _q5_k),
    "q6_k": (256, 210, _q6_k),
    "iq4_nl": (32, 18, _iq4_nl),
    "iq4_xs": (256, 136, _iq4_xs),
    "iq3_xxs": (256, 98, iq3_xxs),
    "iq3_s": (256, 110, iq3_s),
    "iq2_xxs": (256, 66, iq2_xxs),
    "iq2_xs": (256, 74, iq2_xs),
    "iq2_s": (256, 82, iq2_s),
    "mxfp4": (32, 17, _mxfp4),
}
