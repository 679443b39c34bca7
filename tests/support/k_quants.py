"""Rounds matrices to GGUF's K-quants, which the gguf package reads but does not write, and picks types as llama.cpp
does where a row is no multiple of 256."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind

Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_BLOCK = 256
_FALLBACK = {Kind.Q4_K: Kind.Q5_0, Kind.Q5_K: Kind.Q5_1, Kind.Q6_K: Kind.Q8_0}


def fitting(kind: Kind, columns: int) -> Kind:
    """`kind`, or what llama.cpp takes instead for rows of `columns`."""
    return _FALLBACK.get(kind, kind) if columns % _BLOCK else kind


def quantize(values: Values, kind: Kind) -> Bytes:
    """Rows as blocks of `kind`: [rows, bytes]."""
    if kind not in _FALLBACK:
        data: Bytes = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        return data
    blocks = values.reshape(-1, _BLOCK)
    packed = _six_bits(blocks) if kind is Kind.Q6_K else _with_minima(blocks, 4 if kind is Kind.Q4_K else 5)
    return packed.reshape(len(values), -1)


def _half(values: Values) -> tuple[Values, Bytes]:
    halves = values.astype(np.float16)
    return halves.astype(np.float32), halves.view(np.uint8).reshape(len(values), 2)


def _divided(values: Values, by: Values) -> Values:
    return np.divide(values, by, out=np.zeros_like(values), where=by != 0)


def _with_minima(blocks: Values, bits: int) -> Bytes:
    top = 2**bits - 1
    parts = blocks.reshape(-1, 8, 32)
    minima = np.maximum(-parts.min(axis=2), 0)
    scales = np.maximum(parts.max(axis=2) + minima, 0) / top
    d, d_bytes = _half(scales.max(axis=1) / 63)
    dmin, dmin_bytes = _half(minima.max(axis=1) / 63)
    sc = np.clip(np.rint(_divided(scales, d[:, None])), 0, 63).astype(np.uint8)
    m = np.clip(np.rint(_divided(minima, dmin[:, None])), 0, 63).astype(np.uint8)
    shifted = parts + (dmin[:, None] * m)[:, :, None]
    codes = np.clip(np.rint(_divided(shifted, np.repeat((d[:, None] * sc)[:, :, None], 32, 2))), 0, top)
    codes = codes.astype(np.uint8)
    packed_scales = np.concatenate(
        [
            sc[:, :4] | (sc[:, 4:] >> 4 << 6),
            m[:, :4] | (m[:, 4:] >> 4 << 6),
            (sc[:, 4:] & 15) | ((m[:, 4:] & 15) << 4),
        ],
        axis=1,
    )
    low = codes & 15
    nibbles = (low[:, 0::2] | (low[:, 1::2] << 4)).reshape(len(blocks), 128)
    head = [d_bytes, dmin_bytes, packed_scales]
    if bits == 4:
        return np.concatenate([*head, nibbles], axis=1)
    high = ((codes >> 4) << np.arange(8, dtype=np.uint8)[None, :, None]).sum(axis=1).astype(np.uint8)
    return np.concatenate([*head, high, nibbles], axis=1)


def _six_bits(blocks: Values) -> Bytes:
    parts = blocks.reshape(-1, 16, 16)
    scales = np.abs(parts).max(axis=2) / 31
    d, d_bytes = _half(scales.max(axis=1) / 127)
    sc = np.rint(_divided(scales, d[:, None])).astype(np.int8)
    step = np.repeat((d[:, None] * sc)[:, :, None], 16, 2)
    codes = (np.clip(np.rint(_divided(parts, step)), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = codes & 15, codes >> 4
    ql = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    qh = (high << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=2).astype(np.uint8)
    count = len(blocks)
    return np.concatenate([ql.reshape(count, 128), qh.reshape(count, 64), sc.view(np.uint8), d_bytes], axis=1)
