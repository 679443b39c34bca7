"""What the KV cache keeps in place of keys and values, to the bit: codes of one byte, and a bf16 scale for each token.

A token's scale is its largest magnitude over that of the largest code, in fp32, rounded to bf16; its codes are its
values over that scale, rounded to nearest even.
"""

import numpy as np
from kernel_reference import BF16, F32, F64, PAGE, U16, from_bf16, to_bf16, unpack_k, unpack_v
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

DTYPES = ("bf16", "int8", "fp8_e4m3")
MOST = {"int8": 127.0, "fp8_e4m3": 448.0}
SMALLEST_SCALE = 2.0**-64
_EXCHANGED = [0, 2, 1, 3]  # the second and third of four bytes change places
# By magnitude of the code; the last is NaN.
_E4M3 = np.array(
    [m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)], np.float32
)
_E4M3[-1] = np.nan


def encode(dtype: str, x: F32) -> tuple[U8, U16]:
    """Codes of x [..., dim], and the bits of its scales [...]."""
    peak = np.abs(x).max(axis=-1)
    scales = to_bf16(np.maximum(peak / np.float32(MOST[dtype]), np.float32(SMALLEST_SCALE)))
    ratio = x / from_bf16(scales)[..., None]
    if dtype == "int8":
        return np.rint(ratio).astype(np.int8).view(np.uint8), scales
    return np.where(np.signbit(x), 0x80, 0).astype(np.uint8) | _nearest_e4m3(np.abs(ratio)), scales


def _nearest_e4m3(x: F32) -> U8:
    above = np.clip(np.searchsorted(_E4M3[:-1], x), 1, len(_E4M3) - 2)
    middle = (_E4M3[above - 1] + _E4M3[above]) / 2  # exact
    up = (x > middle) | ((x == middle) & (above % 2 == 0))
    return np.where(up, above, above - 1).astype(np.uint8)


def decode(dtype: str, codes: U8, scales: U16) -> F64:
    """The values that codes [..., dim] and scales [...] stand for."""
    if dtype == "int8":
        values = codes.view(np.int8).astype(np.float64)
    else:
        values = np.where(codes & 0x80, -1.0, 1.0) * _E4M3[codes & 0x7F]
    return values * from_bf16(scales)[..., None]


def kept(dtype: str, x: F32) -> F64:
    """x [..., dim] as a cache gives it back."""
    if dtype == "bf16":
        return from_bf16(to_bf16(x)).astype(np.float64)
    return decode(dtype, *encode(dtype, x))


def rounding(dtype: str, x: F64, off: F64) -> F64:
    """How far `kept` may be from x [..., dim], which is off by up to `off`.

    Half a step: of bf16 and of e4m3, which keeps 4 significant bits down to subnormals, relative to the value; of int8
    relative to the token's largest. Rounding the scale makes steps up to 1/256 wider.
    """
    size = np.abs(x) + off
    if dtype == "bf16":
        return BF16 * size
    scale = size.max(axis=-1, keepdims=True) / MOST[dtype] * (1 + BF16) + SMALLEST_SCALE
    half_step = 0.5 * scale if dtype == "int8" else np.maximum(2.0**-4 * size, 2.0**-10 * scale)
    return half_step * (1 + BF16)


def read_half_page(dtype: str, half: U8, *, is_k: bool) -> F64:
    """The values [32, padded dim] of a page's bytes."""
    if dtype == "bf16":
        return from_bf16((unpack_k if is_k else unpack_v)(half.view(np.uint16))).astype(np.float64)
    codes, scales = half[: -2 * PAGE], half[-2 * PAGE :].view(np.uint16)
    tiles = codes.size // 1024
    if is_k:
        unpacked = codes.reshape(2, tiles, 8, 16, 4)[..., _EXCHANGED].transpose(0, 3, 1, 2, 4)
    else:
        unpacked = codes.reshape(2 * tiles, 8, 16, 4)[..., _EXCHANGED].transpose(1, 3, 0, 2)
    return decode(dtype, unpacked.reshape(PAGE, -1), scales)
