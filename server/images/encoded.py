"""Long base64 texts in threads, in slices: an operation on a whole text would hold the GIL for milliseconds."""

from collections.abc import Iterator
from hashlib import sha256

_CHARACTERS = 2**18  # of a slice; some tens of microseconds


def slices(text: str) -> Iterator[bytes]:
    """Yield the text as bytes, one for each character.

    A character outside ASCII becomes a question mark, which is not in base64 either.
    """
    for start in range(0, len(text), _CHARACTERS):
        yield text[start : start + _CHARACTERS].encode("ascii", "replace")


def digest_of(text: str) -> bytes:
    """Return the SHA-256 of a text."""
    digest = sha256()
    for each in slices(text):
        digest.update(each)
    return digest.digest()
