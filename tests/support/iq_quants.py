"""Rounds matrices to GGUF's formats of grids, which the gguf package reads but does not write: plain, slow, and with
nothing in common with the code that reads them."""

import gguf
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
KINDS = ("IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S")

_WIDTH = {"IQ3_XXS": 4, "IQ3_S": 4, "IQ2_XXS": 8, "IQ2_XS": 8, "IQ2_S": 8}  # columns of an entry
_GROUP = {"IQ3_XXS": 32, "IQ3_S": 32, "IQ2_XXS": 32, "IQ2_XS": 16, "IQ2_S": 16}
_UNIT = {"IQ3_XXS": 0.25, "IQ3_S": 1.0, "IQ2_XXS": 0.125, "IQ2_XS": 0.125, "IQ2_S": 0.125}  # of d times an odd number
_EVEN = ("IQ3_XXS", "IQ2_XXS", "IQ2_XS")  # the number of negative signs of eight is even


def quantize(values: Values, kind: str) -> Bytes:
    """Rows as blocks: [blocks, bytes]."""
    groups = values.reshape(len(values), -1, _GROUP[kind]).reshape(-1, 256 // _GROUP[kind], _GROUP[kind])
    grid = _grid(kind)
    wanted = np.abs(groups).max(axis=2) / grid.max()
    d = (wanted.max(axis=1) / (31 * _UNIT[kind])).astype(np.float16)
    step = d.astype(np.float32)[:, None] * np.float32(_UNIT[kind])
    ratio = np.divide(wanted, step, out=np.zeros_like(wanted), where=step > 0)
    scales = np.clip(np.rint((ratio - 1) / 2), 0, 15).astype(np.uint8)
    sizes = (step * (2 * scales + 1))[..., None]
    scaled = np.divide(groups, sizes, out=np.zeros_like(groups), where=sizes > 0)
    signs = _signs(scaled.reshape(-1, 8), kind).reshape(len(groups), 256)
    # A sign that was changed for parity asks for the smallest magnitude.
    aligned = scaled.reshape(len(groups), 256) * np.where(signs, -1, 1)
    indices = _nearest(aligned.reshape(-1, _WIDTH[kind]), grid).reshape(len(groups), -1)
    return _LAYOUTS[kind](d[:, None].view(np.uint8), indices, np.packbits(signs, axis=1, bitorder="little"), scales)


def _grid(kind: str) -> Values:
    made = getattr(gguf.quants, kind)
    made.init_grid()
    grid: Values = made.grid[0, 0].astype(np.float32)
    return grid


def _signs(eights: Values, kind: str) -> npt.NDArray[np.bool_]:
    signs = eights < 0
    if kind in _EVEN:
        odd = signs.sum(axis=1) % 2 == 1
        smallest = np.abs(eights).argmin(axis=1)
        signs[odd, smallest[odd]] ^= True
    return signs


def _nearest(tuples: Values, grid: Values) -> npt.NDArray[np.uint16]:
    """Indices of the nearest entries: the largest of 2 x.g - g.g."""
    doubled, squares = np.ascontiguousarray(2 * grid.T), (grid**2).sum(axis=1)
    # So few that their products with all entries stay in the L2 cache.
    parts = np.array_split(tuples, len(tuples) // 256 + 1)
    return np.concatenate([(part @ doubled - squares).argmax(axis=1) for part in parts]).astype(np.uint16)


def _joined(*parts: npt.NDArray[np.generic]) -> Bytes:
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)


def _pairs(nibbles: Bytes) -> Bytes:
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4


def _sevens(signs: Bytes, scales: Bytes) -> npt.NDArray[np.uint32]:
    """Words of four times seven signs and a scale."""
    seven = (signs & 127).astype(np.uint32).reshape(len(signs), 8, 4) << np.array([0, 7, 14, 21], np.uint32)
    words: npt.NDArray[np.uint32] = seven.sum(axis=2, dtype=np.uint32) | scales.astype(np.uint32) << np.uint32(28)
    return words


def _iq3_xxs(d: Bytes, indices: npt.NDArray[np.uint16], signs: Bytes, scales: Bytes) -> Bytes:
    return _joined(d, indices.astype(np.uint8), _sevens(signs, scales))


def _iq2_xxs(d: Bytes, indices: npt.NDArray[np.uint16], signs: Bytes, scales: Bytes) -> Bytes:
    words = indices.astype(np.uint8).view("<u4")
    return _joined(d, np.stack([words, _sevens(signs, scales)], axis=2).reshape(len(d), -1))


def _iq3_s(d: Bytes, indices: npt.NDArray[np.uint16], signs: Bytes, scales: Bytes) -> Bytes:
    high = np.packbits((indices >> 8).astype(np.uint8), axis=1, bitorder="little")
    return _joined(d, indices.astype(np.uint8), high, signs, _pairs(scales))


def _iq2_xs(d: Bytes, indices: npt.NDArray[np.uint16], signs: Bytes, scales: Bytes) -> Bytes:
    return _joined(d, indices | (signs & 127).astype(np.uint16) << np.uint16(9), _pairs(scales))


def _iq2_s(d: Bytes, indices: npt.NDArray[np.uint16], signs: Bytes, scales: Bytes) -> Bytes:
    twos = (indices >> 8).astype(np.uint8).reshape(len(d), 8, 4) << np.array([0, 2, 4, 6], np.uint8)
    return _joined(d, indices.astype(np.uint8), signs, twos.sum(axis=2, dtype=np.uint8), _pairs(scales))


_LAYOUTS = {"IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s, "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s}
