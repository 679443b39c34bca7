"""The one form into which every published layout is decoded, and that a packed matrix takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from numaserve.workers.layers.stored import REQUANTIZED_GROUP, CodeFormat

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_INT4_ZERO, _INT8_ZERO = 8, 128
_ZEROS: dict[CodeFormat, int] = {"int4": _INT4_ZERO, "int8_group": _INT8_ZERO}
_MAX_CODE = 127


@dataclass(frozen=True)
class CodedTensor:
    """Quantized rows of a matrix.

    `codes` [rows, columns]: 0..15 in "int4" and "iq", 0..255 in "int8_group", the bits of an int8 in "int8", of an
    e4m3 in "fp8", of an e2m1 in "mxfp4" and "nvfp4". `scales` and `offsets` [rows, groups], each for `group` columns;
    the last group may have fewer. weight = scale * (code - offset) where the offsets are zeros, scale * code + offset
    where they are not. Without offsets weight = scale * (code - 8) in "int4", scale * (code - 128) in "int8_group", and
    in the others scale * the value of the code. `factors` [rows, 1] multiply all weights of a row, in "nvfp4" only.
    """

    name: str  # of the tensor in its file, for messages
    format: CodeFormat
    codes: Codes
    scales: Floats
    group: int
    offsets: Floats | None = None
    offsets_are_zeros: bool = True
    factors: Floats | None = None

    def widened(self) -> CodedTensor:
        """Return these weights in "int8_group": codes of 4 bits are codes of 8 bits too."""
        if self.format in _IQ:
            return replace(
                self, format="int8_group", codes=(_IQ[self.format] + _INT8_ZERO).astype(np.uint8)[self.codes]
            )
        if self.format != "int4":
            return self
        zeros = np.full_like(self.scales, _INT4_ZERO) if self.offsets is None else self.offsets
        return replace(self, format="int8_group", offsets=zeros)

    def turned(self, group: int) -> CodedTensor | None:
        """Return the transpose, with groups of `group`, the same to the bit. Return None if rows that come to lie in
        one group differ in their scales, or have offsets."""
        rows, columns = self.codes.shape
        of_groups = self.scales[::group]
        if self.offsets is not None or (np.repeat(of_groups, group, axis=0)[:rows] != self.scales).any():
            return None
        scales = np.repeat(of_groups, self.group, axis=1)[:, :columns]
        return replace(self, codes=self.codes.T, scales=scales.T, group=group)

    def dequantized(self) -> Floats:
        """Return the weights, [rows, columns]."""
        values = _values(self.format, self.codes)
        scales, offsets = self.scales, self.offsets
        if values.shape[1] % self.group:
            # The last group has fewer columns, or the row is one group: scales are repeated, at the cost of a matrix of
            # them.
            scales = _by_column(scales, self.group, values.shape[1])
            offsets = None if offsets is None else _by_column(offsets, self.group, values.shape[1])
            grouped = values
        else:
            grouped = values.reshape(len(values), -1, self.group)
            scales, offsets = scales[:, :, None], None if offsets is None else offsets[:, :, None]
        if offsets is None:
            grouped -= np.float32(_ZEROS.get(self.format, 0))
        elif self.offsets_are_zeros:
            grouped -= offsets
        grouped *= scales
        if offsets is not None and not self.offsets_are_zeros:
            grouped += offsets
        if self.factors is not None:
            values *= self.factors
        return values


def requantized(name: str, values: Floats, group: int = REQUANTIZED_GROUP) -> CodedTensor:
    """Return weights rounded into "int8_group", off by at most a 253rd of the largest of their group. For weights with
    groups that no packed matrix can have, or with groups along the other axis."""
    rows, columns = values.shape
    groups = -(-columns // group)
    padded = np.pad(values, ((0, 0), (0, groups * group - columns)))
    grouped = padded.reshape(rows, groups, group)
    scales = _rounded_up(np.abs(grouped).max(axis=2) / np.float32(_MAX_CODE))
    factors = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    grouped *= factors[:, :, None]
    np.rint(grouped, out=grouped)
    # A factor that was rounded up, or overflowed for a tiny scale, must not move a code out of range.
    np.clip(np.nan_to_num(grouped, copy=False), -_MAX_CODE, _MAX_CODE, out=grouped)
    padded += np.float32(_INT8_ZERO)
    codes = padded.astype(np.uint8)
    return CodedTensor(name, "int8_group", np.ascontiguousarray(codes[:, :columns]), scales, group)


def _rounded_up(scales: Floats) -> Floats:
    """Return scales rounded up to the 11 bits that a packed matrix keeps, so that codes are computed with the kept
    scales."""
    dropped = np.uint32(0x1FFF)
    return ((np.ascontiguousarray(scales).view(np.uint32) + dropped) & ~dropped).view(np.float32)


def e4m3_values() -> Floats:
    """Return the 256 values of e4m3 by their bits (OCP 8-bit floating point specification, E4M3): bias 7, no
    infinity."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    magnitude[bits & 127 == 127] = np.nan
    return np.where(bits >> 7, -magnitude, magnitude).astype(np.float32)


_E4M3 = e4m3_values()
# The values of e2m1 by their bits (OCP Microscaling Formats): a sign, two bits of exponent, one of mantissa.
_E2M1_MAGNITUDES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
_E2M1 = np.array([*_E2M1_MAGNITUDES, *(-value for value in _E2M1_MAGNITUDES)], np.float32)


# The values of iq4 by code (ggml-common.h of llama.cpp).
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Those of iq3 and iq2: a sign, then the index of a magnitude.
_IQ3 = np.array([4, 12, 20, 28, 36, 44, 52, 62], np.float32)
_IQ2 = np.array([8, 25, 43, 0, 0, 0, 0, 0], np.float32)
_IQ: dict[CodeFormat, Floats] = {
    "iq4": _IQ4,
    "iq3": np.concatenate([_IQ3, -_IQ3]),
    "iq2": np.concatenate([_IQ2, -_IQ2]),
}
_TABLES: dict[CodeFormat, Floats] = {"fp8": _E4M3, "mxfp4": _E2M1, "nvfp4": _E2M1, **_IQ}


def _values(format: CodeFormat, codes: Codes) -> Floats:
    if format in _TABLES:
        return _TABLES[format][codes]
    return (codes.view(np.int8) if format == "int8" else codes).astype(np.float32)


def _by_column(values: Floats, group: int, columns: int) -> Floats:
    if values.shape[1] == 1:
        return values
    return np.repeat(values, group, axis=1)[:, :columns]
