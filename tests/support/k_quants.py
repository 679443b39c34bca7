"""Rounds matrices to those of GGUF's types that the gguf package reads but does not write, and picks types as llama.cpp
does where a row is no multiple of 256."""

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind

from tests.support import iq_quants

Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_BLOCK, _SMALL_BLOCK = 256, 32
_PLAIN = (Kind.F32, Kind.F16, Kind.BF16)
_FALLBACK = {Kind.Q4_K: Kind.Q5_0, Kind.Q5_K: Kind.Q5_1, Kind.Q6_K: Kind.Q8_0} | dict.fromkeys(
    (Kind.Q2_K, Kind.Q3_K, Kind.IQ4_XS, *(Kind[kind] for kind in iq_quants.KINDS)), Kind.IQ4_NL
)
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def fitting(kind: Kind, columns: int) -> Kind:
    """`kind`, or what llama.cpp takes instead for rows of `columns`."""
    if columns % _SMALL_BLOCK and kind not in _PLAIN:
        return Kind.F16
    return _FALLBACK.get(kind, kind) if columns % _BLOCK else kind


def quantize(values: Values, kind: Kind) -> Bytes:
    """Rows as blocks of `kind`: [rows, bytes]."""
    if kind.name in iq_quants.KINDS:
        return iq_quants.quantize(np.ascontiguousarray(values), kind.name).reshape(len(values), -1)
    if kind not in _WRITERS:
        data: Bytes = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        return data
    return _WRITERS[kind](values).reshape(len(values), -1)


def _half(values: Values) -> tuple[Values, Bytes]:
    halves = values.astype(np.float16)
    return halves.astype(np.float32), halves.view(np.uint8).reshape(len(values), 2)


def _divided(values: Values, by: Values) -> Values:
    return np.divide(values, by, out=np.zeros_like(values), where=by != 0)


def _with_minima(values: Values, bits: int) -> Bytes:
    top = 2**bits - 1
    parts = values.reshape(-1, 8, 32)
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
    nibbles = (low[:, 0::2] | (low[:, 1::2] << 4)).reshape(len(parts), 128)
    head = [d_bytes, dmin_bytes, packed_scales]
    if bits == 4:
        return np.concatenate([*head, nibbles], axis=1)
    high = ((codes >> 4) << np.arange(8, dtype=np.uint8)[None, :, None]).sum(axis=1).astype(np.uint8)
    return np.concatenate([*head, high, nibbles], axis=1)


def _six_bits(values: Values) -> Bytes:
    parts = values.reshape(-1, 16, 16)
    scales = np.abs(parts).max(axis=2) / 31
    d, d_bytes = _half(scales.max(axis=1) / 127)
    sc = np.rint(_divided(scales, d[:, None])).astype(np.int8)
    step = np.repeat((d[:, None] * sc)[:, :, None], 16, 2)
    codes = (np.clip(np.rint(_divided(parts, step)), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = codes & 15, codes >> 4
    ql = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    qh = (high << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=2).astype(np.uint8)
    count = len(parts)
    return np.concatenate([ql.reshape(count, 128), qh.reshape(count, 64), sc.view(np.uint8), d_bytes], axis=1)


def _pairs_of_bits(codes: Bytes) -> Bytes:
    """Codes of two bits of 256 columns as bytes: [count, 64]."""
    shifted = codes.reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    return shifted.sum(axis=2).astype(np.uint8).reshape(-1, 64)


def _two_bits(values: Values) -> Bytes:
    parts = values.reshape(-1, 16, 16)
    minima = np.maximum(-parts.min(axis=2), 0)
    scales = np.maximum(parts.max(axis=2) + minima, 0) / 3
    d, d_bytes = _half(scales.max(axis=1) / 15)
    dmin, dmin_bytes = _half(minima.max(axis=1) / 15)
    sc = np.clip(np.rint(_divided(scales, np.repeat(d[:, None], 16, 1))), 0, 15).astype(np.uint8)
    m = np.clip(np.rint(_divided(minima, np.repeat(dmin[:, None], 16, 1))), 0, 15).astype(np.uint8)
    step = np.repeat((d[:, None] * sc)[:, :, None], 16, 2)
    codes = np.clip(np.rint(_divided(parts + (dmin[:, None] * m)[:, :, None], step)), 0, 3).astype(np.uint8)
    return np.concatenate([sc | m << 4, _pairs_of_bits(codes), d_bytes, dmin_bytes], axis=1)


def _three_bits(values: Values) -> Bytes:
    parts = values.reshape(-1, 16, 16)
    scales = _largest(parts) / -4
    d, d_bytes = _half(_largest(scales) / -32)
    sc = np.clip(np.rint(_divided(scales, np.repeat(d[:, None], 16, 1))), -32, 31)
    step = np.repeat((d[:, None] * sc)[:, :, None], 16, 2)
    codes = (np.clip(np.rint(_divided(parts, step)), -4, 3) + 4).astype(np.uint8)
    high = ((codes.reshape(-1, 8, 32) >> 2) << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=1).astype(np.uint8)
    stored = (sc + 32).astype(np.uint8)
    low = stored[:, :8] & 15 | (stored[:, 8:] & 15) << 4
    top = ((stored.reshape(-1, 4, 4) >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=1).astype(np.uint8)
    return np.concatenate([high, _pairs_of_bits(codes & 3), low, top, d_bytes], axis=1)


def _largest(parts: Values) -> Values:
    """The value of the largest magnitude in the last dimension, with its sign."""
    return np.take_along_axis(parts, np.abs(parts).argmax(axis=-1)[..., None], axis=-1)[..., 0]


def _by_table(parts: Values, steps: Values) -> Bytes:
    """Codes of IQ4, two in a byte: the first half of the last dimension in the low bits."""
    scaled = _divided(parts, np.repeat(steps[..., None], parts.shape[-1], -1))
    codes = np.abs(scaled[..., None] - _IQ4).argmin(axis=-1).astype(np.uint8)
    return codes[..., :16] | codes[..., 16:] << 4


def _iq4_nl(values: Values) -> Bytes:
    parts = values.reshape(-1, 32)
    d, d_bytes = _half(_largest(parts) / _IQ4[0])
    return np.concatenate([d_bytes, _by_table(parts, d)], axis=1)


def _iq4_xs(values: Values) -> Bytes:
    parts = values.reshape(-1, 8, 32)
    scales = _largest(parts) / _IQ4[0]
    d, d_bytes = _half(_largest(scales) / -32)
    sc = np.clip(np.rint(_divided(scales, np.repeat(d[:, None], 8, 1))), -32, 31)
    codes, stored = _by_table(parts, d[:, None] * sc), (sc + 32).astype(np.uint16)
    high = (stored >> 4 << np.arange(0, 16, 2, dtype=np.uint16)).sum(axis=1).astype(np.uint16)
    low = (stored[:, 0::2] & 15 | (stored[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.concatenate([d_bytes, high[:, None].view(np.uint8), low, codes.reshape(len(parts), 128)], axis=1)


_WRITERS: dict[Kind, Callable[[Values], Bytes]] = {
    Kind.Q2_K: _two_bits,
    Kind.Q3_K: _three_bits,
    Kind.Q4_K: lambda values: _with_minima(values, 4),
    Kind.Q5_K: lambda values: _with_minima(values, 5),
    Kind.Q6_K: _six_bits,
    Kind.IQ4_NL: _iq4_nl,
    Kind.IQ4_XS: _iq4_xs,
}
