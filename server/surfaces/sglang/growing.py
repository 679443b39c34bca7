"""JSON values that grow at the end.

Each event of SGLang's streams repeats the whole answer so far. Encoding it again for each event would take seconds of
the event loop for a long answer.
"""

from collections.abc import Iterable

import msgspec


class GrowingText:
    """A JSON string."""

    def __init__(self) -> None:
        self._json = bytearray(b'"')

    def add(self, text: str) -> None:
        """Append `text`."""
        self._json += msgspec.json.encode(text)[1:-1]

    def json(self) -> msgspec.Raw:
        """Return the string so far."""
        return msgspec.Raw(bytes(self._json) + b'"')


class GrowingList:
    """A JSON array."""

    def __init__(self) -> None:
        self._json = bytearray(b"[")

    def add(self, items: Iterable[object]) -> None:
        """Append each of `items`."""
        for item in items:
            self._json += (b"" if len(self._json) == 1 else b",") + msgspec.json.encode(item)

    def json(self) -> msgspec.Raw:
        """Return the array so far."""
        return msgspec.Raw(bytes(self._json) + b"]")
