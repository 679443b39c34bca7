"""Long base64 texts in threads, in slices: an operation on a whole text would hold the GIL for milliseconds.

A character outside ASCII becomes a question mark, which is not in base64 either.
"""

from collections.abc import Iterator
from hashlib import sha256

_CHARACTERS = 2**18  # of a slice; some tens of microseconds


def digest_of(text: str) -> bytes:
    """Return the SHA-256 of a text."""
    digest = sha256()
    for piece in _slices(text):
        digest.update(piece)
    return digest.digest()


def to_bytes(text: str) -> bytearray:
    """Return the characters of a text as bytes."""
    data = bytearray(len(text))  # allocated at once: a growing one would be copied
    start = 0
    for piece in _slices(text):
        data[start : start + len(piece)] = piece
        start += len(piece)
    return data


def _slices(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), _CHARACTERS):
        yield text[start : start + _CHARACTERS].encode("ascii", "replace")
