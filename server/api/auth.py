"""API keys: read from a file, compared in constant time, asked for on every route but the health probes."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from numaserve.workers.errors import OperatorError
from numaserve.workers.files import SETTINGS_BYTES, read_text

_API_KEY = b"x-api-key"  # as Anthropic's clients send it
_KEY_HEADERS = frozenset({b"authorization", _API_KEY})
OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/ping"})


def read_keys(path: Path) -> list[str]:
    """Keys of a file, one a line; empty lines and lines that start with ``#`` are skipped.

    Raises `OperatorError` when the file cannot be read or has no usable key: serving without a check because a file was
    empty would be the wrong way to fail.
    """
    lines = [line.strip() for line in read_text(path, SETTINGS_BYTES).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise OperatorError(f"the API key file {path} has no key; write one key a line")
    if not all(map(is_sendable, keys)):
        raise OperatorError(f"a key in {path} has a character that no HTTP header may carry; use ASCII without spaces")
    return keys


def is_sendable(key: str) -> bool:
    """Whether an HTTP header can carry the key."""
    return key.isascii() and key.isprintable() and " " not in key


class ApiKeys:
    """The keys that are accepted; never printed, never compared byte by byte."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.replace(keys)

    def replace(self, keys: Iterable[str]) -> None:
        """Accept these from the next request on, and no others."""
        digests = tuple(_digest(key.encode()) for key in keys)
        if not digests:
            raise ValueError("at least one API key is needed")
        self._digests = digests

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request presents a known key, as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

        A client may send both: then both have to be known. The same header twice is refused.
        """
        presented = [(name, value) for name, value in headers if name in _KEY_HEADERS]
        names = [name for name, _ in presented]
        if not presented or len(set(names)) != len(names):
            return False
        known = [self._is_known(_key_in(name, value)) for name, value in presented]
        return all(known)

    @staticmethod
    def owner(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """What tells the callers of an accepted request apart: who sends the same keys is the same."""
        return b"".join(sorted({_digest(_key_in(name, value)) for name, value in headers if name in _KEY_HEADERS}))

    def _is_known(self, key: bytes) -> bool:
        # Digests have equal lengths and every key is compared, so neither a key's length nor its place shows in time.
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _key_in(name: bytes, value: bytes) -> bytes:
    """The key in a header; none that is known where its scheme is another."""
    if name == _API_KEY:
        return value.strip()
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
