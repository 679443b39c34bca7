"""Long texts that a body carries and that nothing in the front end reads, such as images in base64.

The process that decodes long bodies sends them after its answer, in slices, and a number stands for each in the data:
no encoder walks them, they are in no piece, and no log shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_SLICE = 1 << 18  # bytes; some tens of microseconds


class Opaque:
    """A long text. It is taken once, which frees its memory early: a request outlives the reading of its body."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Hold `text`, which is ASCII and not empty."""
        self._text = text

    def __len__(self) -> int:
        return len(self._text)

    def __repr__(self) -> str:
        return f"Opaque({len(self)} characters)"

    def take(self) -> str:
        """Return the text, which this object then no longer holds."""
        text, self._text = self._text, ""
        return text


class TakenOut:
    """The opaque texts of data, in order. The methods are hooks of msgspec."""

    def __init__(self, texts: list[str] | None = None) -> None:
        self.texts: list[str] = [] if texts is None else texts

    def encode(self, value: Any) -> int:
        """Return the number that stands for an opaque text, and keep the text. Raises `NotImplementedError`."""
        if not isinstance(value, Opaque):
            raise NotImplementedError(f"a {type(value).__name__} is no plain data")
        self.texts.append(value.take())
        return len(self.texts) - 1

    def decode(self, kind: type, value: Any) -> Opaque:
        """Return the opaque text that the number `value` stands for. Raises `NotImplementedError`."""
        if kind is not Opaque:
            raise NotImplementedError(f"a {kind.__name__} is no plain data")
        return Opaque(self.texts[value])


def slices_of(text: str) -> Iterator[bytes]:
    """Yield the slices of an opaque text: to receive all of it at once would hold the GIL for several copies."""
    return (text[start : start + _SLICE].encode("ascii") for start in range(0, len(text), _SLICE))


def text_of(slices: Iterator[bytes]) -> str:
    """Return the opaque text of these slices."""
    return "".join(each.decode("ascii") for each in slices)
