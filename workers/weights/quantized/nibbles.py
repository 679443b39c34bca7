"""Codes packed side by side in 32-bit words, lowest bits first."""

import numpy as np
import numpy.typing as npt
from numaserve.workers.weights.quantized.coded import Codes

Words = npt.NDArray[np.uint32]

# For codes of 2 or 4 bits: the shifts that spread the codes of a byte, and the mask of the bits that stay.
_STEPS = {2: (12, 6), 4: (4,)}
_LOW = {2: 0x03030303, 4: 0x0F0F}


def word_count(codes: int, bits: int) -> int:
    """Return the words that `codes` codes take. Codes of 3 bits may cross words, so they take triples of words."""
    return -(-codes // 32) * 3 if bits == 3 else -(-codes * bits // 32)


def codes_of_rows(packed: Words, bits: int) -> Codes:
    """Return [rows, words] of codes of 2, 3, 4 or 8 `bits` as [rows, 32 / bits * words]."""
    octets = np.ascontiguousarray(packed).view(np.uint8)
    if bits == 8:
        return octets
    if bits == 3:
        return _threes(octets)
    # The codes of a byte become the bytes of a word by operations on whole vectors, never on single elements.
    spread = octets.astype(f"u{8 // bits}")
    for step in _STEPS[bits]:
        spread |= spread << step
    spread &= _LOW[bits]
    return spread.view(np.uint8)


def _threes(octets: Codes) -> Codes:
    """Return the eight codes of every three bytes."""
    triples = octets.reshape(len(octets), -1, 3).astype(np.uint32)
    fields = triples[:, :, 0] | triples[:, :, 1] << 8 | triples[:, :, 2] << 16
    codes = np.empty((*fields.shape, 8), np.uint8)
    for field in range(8):
        np.bitwise_and(fields >> np.uint32(3 * field), 7, out=codes[:, :, field], casting="unsafe")
    return codes.reshape(len(octets), -1)
