"""JSON that grows at its end. SGLang's streams repeat in each event all that came before: encoding it again each time
would take a long answer seconds of the event loop."""

from collections.abc import Iterable

import msgspec


class GrowingText:
    """A JSON string."""

    def __init__(self) -> None:
        self._json = bytearray(b'"')

    def add(self, text: str) -> None:
        """Append to it."""
        self._json += msgspec.json.encode(text)[1:-1]

    def json(self) -> msgspec.Raw:
        """The string so far."""
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
        """The array so far."""
        return msgspec.Raw(bytes(self._json) + b"]")
