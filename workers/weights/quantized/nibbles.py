"""Codes that lie side by side in 32-bit words, lowest bits first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numaserve.workers.weights.quantized.coded import Codes

Words = npt.NDArray[np.uint32]


def codes_of_rows(packed: Words, bits: int) -> Codes:
    """[rows, words] of codes of 4 or 8 `bits`: [rows, 32 / bits * words]."""
    octets = np.ascontiguousarray(packed).view(np.uint8)
    if bits == 8:
        return octets
    # Two nibbles of a byte become the two bytes of a word: whole vectors of either, never single elements.
    pairs = octets.astype(np.uint16)
    pairs |= pairs << 4
    pairs &= 0x0F0F
    return pairs.view(np.uint8)
