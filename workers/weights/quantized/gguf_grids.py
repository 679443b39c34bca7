"""GGUF's formats whose codes are entries of a grid (ggml-common.h and ggml-quants.c of llama.cpp), in blocks of 256.

An entry has the magnitudes of four columns, or of eight in IQ2. Signs follow, a bit each. IQ2_XXS, IQ3_XXS and IQ2_XS
store seven signs of eight: the number of negative ones is even. A 4-bit scale is of 32 columns, of 16 in IQ2_XS and
IQ2_S, and a d in fp16 of all.
"""

import functools

import numpy as np
import numpy.typing as npt
from gguf import quants
from numaserve.workers.weights.quantized.coded import CodedTensor, Codes, Floats
from numaserve.workers.weights.quantized.gguf_fields import Blocks, flat, half

_Indices = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
_SIGN_BIT, _MIDDLE = np.uint8(3), np.uint8(128)
_ODD_ZERO = 7.5  # odd numbers from -15 to 15 are twice a code of 4 bits minus this


@functools.cache
def _grid(kind: str) -> Codes:
    """Return the entries of a grid, each magnitude as its index: [entries, columns]."""
    made = getattr(quants, kind)
    made.init_grid()
    indices: Codes = np.searchsorted(made.grid_map, made.grid[0, 0]).astype(np.uint8)
    return indices


_IQ2 = np.array(quants.IQ2_XXS.grid_map, np.uint8)
_EVEN = np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)  # eight signs by seven of them


def _magnitudes(kind: str, indices: _Indices) -> Codes:
    """Return the indices of magnitudes, [rows, columns], of entries [rows, blocks, ..]."""
    return flat(_grid(kind)[indices])


def _signs(octets: Codes) -> Codes:
    """Return 1 for each negative number, [rows, columns], of bytes of eight signs."""
    return np.unpackbits(flat(octets), axis=-1, bitorder="little")


def _words(octets: Blocks) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(octets).view("<u4")


def _even_signs(words: npt.NDArray[np.uint32]) -> Codes:
    """The same of words of four times seven signs."""
    return _signs(_EVEN[words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & np.uint32(127)])


def _nibbles(octets: Blocks) -> Codes:
    return (octets[..., None] >> np.array([0, 4], np.uint8) & np.uint8(15)).reshape(*octets.shape[:2], -1)


def _scales(name: str, blocks: Blocks, steps: npt.NDArray[np.generic], unit: float) -> Floats:
    """Return d * (2 * step + 1) * unit, [rows, groups]: an odd number of half steps. All products are exact."""
    odd = 2 * steps.astype(np.float32) + 1
    scales: Floats = odd * half(name, blocks, 0)[:, :, None] * np.float32(unit)
    return scales.reshape(scales.shape[0], -1)


def iq3_xxs(name: str, blocks: Blocks) -> CodedTensor:
    """Decode IQ3_XXS: indices of a byte, then words of 28 signs and a scale."""
    words = _words(blocks[:, :, 66:98])
    codes = _magnitudes("IQ3_XXS", blocks[:, :, 2:66]) | _even_signs(words) << _SIGN_BIT
    return CodedTensor(name, "iq3", codes, _scales(name, blocks, words >> 28, 0.25), 32)


def iq2_xxs(name: str, blocks: Blocks) -> CodedTensor:
    """Decode IQ2_XXS: for 32 columns four indices of a byte, then a word of 28 signs and a scale."""
    octets = blocks[:, :, 2:66].reshape(*blocks.shape[:2], 8, 8)
    words = _words(octets[..., 4:])[..., 0]
    codes = _magnitudes("IQ2_XXS", octets[..., :4]) | _even_signs(words) << _SIGN_BIT
    return CodedTensor(name, "iq2", codes, _scales(name, blocks, words >> 28, 0.125), 32)


def iq3_s(name: str, blocks: Blocks) -> CodedTensor:
    """Decode IQ3_S: indices of nine bits, the ninth of all in bytes of their own, then signs and scales."""
    ninth = np.unpackbits(blocks[:, :, 66:74], axis=-1, bitorder="little").astype(np.uint16)
    indices = _magnitudes("IQ3_S", blocks[:, :, 2:66] | ninth << np.uint16(8))
    # Magnitudes are 2 * index + 1.
    codes = np.where(_signs(blocks[:, :, 74:106]), np.uint8(7) - indices, np.uint8(8) + indices)
    scales = _scales(name, blocks, _nibbles(blocks[:, :, 106:110]), 2)
    return CodedTensor(name, "int4", codes, scales, 32, np.full_like(scales, _ODD_ZERO))


def iq2_xs(name: str, blocks: Blocks) -> CodedTensor:
    """Decode IQ2_XS: words of 16 bits of an index of nine bits and seven signs, then scales."""
    words = np.ascontiguousarray(blocks[:, :, 2:66]).view("<u2")
    codes = _eight_bits(_magnitudes("IQ2_XS", words & np.uint16(511)), _signs(_EVEN[words >> np.uint16(9)]))
    return CodedTensor(name, "int8_group", codes, _scales(name, blocks, _nibbles(blocks[:, :, 66:74]), 0.125), 16)


def iq2_s(name: str, blocks: Blocks) -> CodedTensor:
    """Decode IQ2_S: indices of ten bits, the last two of all in bytes of their own after the signs, then scales."""
    high = blocks[:, :, 66:74, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    indices = blocks[:, :, 2:34] | high.reshape(*blocks.shape[:2], 32).astype(np.uint16) << np.uint16(8)
    codes = _eight_bits(_magnitudes("IQ2_S", indices), _signs(blocks[:, :, 34:66]))
    return CodedTensor(name, "int8_group", codes, _scales(name, blocks, _nibbles(blocks[:, :, 74:82]), 0.125), 16)


def _eight_bits(indices: Codes, signs: Codes) -> Codes:
    """Return codes of 8 bits around 128: groups of 16 are rounded again."""
    magnitudes = _IQ2[indices]
    return np.where(signs, _MIDDLE - magnitudes, _MIDDLE + magnitudes)
