"""A scanner of text that arrives in pieces; its readers are generators that yield when they need more text."""

import re
import sys
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields when it needs more text; returns what it has read
Emit = Callable[[str], object]

_SPACE = re.compile(r"[ \t\r\n]+")


class NotACall(Exception):
    """Text that began like a call is none; the recorded text belongs to the answer."""


class Markers:
    """The set of strings to search for. The match that begins first wins, then the longest."""

    def __init__(self, *markers: str) -> None:
        if not all(markers):
            raise ValueError("a marker cannot be empty")
        longest_first = sorted(markers, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._parts = {marker[:length] for marker in markers for length in range(1, len(marker))}
        self._longest_part = max(map(len, self._parts), default=0)

    def part_at_end(self, text: str, start: int) -> int:
        """Return the position of the longest suffix of `text`, at or after `start`, that begins a marker; else its
        length."""
        for at in range(max(start, len(text) - self._longest_part), len(text)):
            if text[at:] in self._parts:
                return at
        return len(text)


@lru_cache(256)
def markers(*texts: str) -> Markers:
    """Return the cached markers of these texts."""
    return Markers(*texts)


class Scanner:
    """The received text and the position up to which it has been read.

    Decisions depend on the text alone, never on how it was split: a reader that needs more text yields. Read text is
    recorded until `forget`, so that text that turns out to be no call is not lost.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._record: list[str] = []
        self._recording = False

    def feed(self, text: str) -> None:
        """Append the next piece."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Mark the end of the text."""
        self._ended = True

    @property
    def at_end(self) -> bool:
        """Return whether the whole text has arrived and been read."""
        return self._ended and self._at == len(self._text)

    def record(self, text: str) -> None:
        """Begin a record with `text`, which has just been read."""
        self._record = [text]
        self._recording = True

    def forget(self) -> None:
        """Drop the recorded text; continue to record."""
        self._record.clear()

    def recorded(self) -> str:
        """End the record and return it."""
        text = "".join(self._record)
        self._record.clear()
        self._recording = False
        return text

    def _take(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        if self._recording and text:
            self._record.append(text)
        return text

    def peek(self) -> Steps[str]:
        """Return the next character without consuming it; "" at the end of the text."""
        while self._at == len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def sees(self, *options: str) -> Steps[str | None]:
        """Return the longest of `options` that follows, without consuming it; None if none follows."""
        longest = max(map(len, options))
        while True:
            rest = self._text[self._at : self._at + longest]
            if self._ended or not any(len(each) > len(rest) and each.startswith(rest) for each in options):
                return max((each for each in options if rest.startswith(each)), key=len, default=None)
            yield

    def one_of(self, *options: str) -> Steps[str | None]:
        """Consume and return the longest of `options` that follows; None if none follows."""
        found = yield from self.sees(*options)
        if found is not None:
            self._take(self._at + len(found))
        return found

    def expect(self, *options: str) -> Steps[str]:
        """Consume and return the longest of `options` that follows. Raises `NotACall` if none follows."""
        found = yield from self.one_of(*options)
        if found is None:
            raise NotACall
        return found

    def close(self, option: str) -> Steps[bool]:
        """Consume `option`, or the part of it at the end of the text. Return whether anything was consumed."""
        if (yield from self.one_of(option)):
            return True
        return self._ended and option.startswith(self._text[self._at :]) and bool(self._take(len(self._text)))

    def space(self) -> Steps[None]:
        """Consume white space."""
        while True:
            if space := _SPACE.match(self._text, self._at):
                self._take(space.end())
            if self._at < len(self._text) or self._ended:
                return
            yield

    def before(self, ends: Markers, emit: Emit) -> Steps[str | None]:
        """Copy text up to the first of `ends` to `emit`. Return that end without consuming it; None at the end of the
        text."""
        while True:
            part = len(self._text) if self._ended else ends.part_at_end(self._text, self._at)
            found = ends.pattern.search(self._text, self._at)
            end = found.start() if found and found.start() < part else part
            if end > self._at:
                emit(self._take(end))
            if found and end < part:
                return found.group()
            if self._ended:
                return None
            yield

    def until(self, ends: Markers, emit: Emit) -> Steps[str | None]:
        """Do the same as `before`, but consume the end."""
        found = yield from self.before(ends, emit)
        self._take(self._at + len(found or ""))
        return found

    def some(self, characters: re.Pattern[str], limit: int = sys.maxsize) -> Steps[str]:
        """Consume and return characters as long as they match, at most `limit`."""
        pieces: list[str] = []
        while len(pieces) < limit and (character := (yield from self.peek())):
            if not characters.match(character):
                break
            pieces.append(self._take(self._at + 1))
        return "".join(pieces)

    def lines(self, text: str) -> Steps[None]:
        """Consume the lines of `text`, each with any white space before it. Raises `NotACall` if they do not follow."""
        for line in filter(None, text.split("\n")):
            yield from self.space()
            yield from self.expect(line)

    def close_lines(self, text: str) -> Steps[None]:
        """Consume the lines of `text` that follow, each with any white space before it."""
        for line in filter(None, text.split("\n")):
            yield from self.space()
            yield from self.close(line)

    def give(self, take: Callable[[str, int], int]) -> None:
        """Let `take(text, start)` read the text that has arrived, and consume up to the position that it returns."""
        self._take(take(self._text, self._at))
