"""Reading text that comes in pieces, by generators which yield where they need more of it."""

import re
import sys
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields where it needs more text, returns what it has read
Emit = Callable[[str], object]

_SPACE = re.compile(r"[ \t\r\n]+")


class NotACall(Exception):
    """What began like a call is none; what has been read of it is text of the answer."""


class Markers:
    """Strings to look for. Of two that both match, the one that begins earlier counts, then the longer one."""

    def __init__(self, *markers: str) -> None:
        if not all(markers):
            raise ValueError("a marker cannot be empty")
        longest_first = sorted(markers, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._parts = {marker[:length] for marker in markers for length in range(1, len(marker))}
        self._longest_part = max(map(len, self._parts), default=0)

    def part_at_end(self, text: str, start: int) -> int:
        """Where the longest end of `text`, not before `start`, begins that may become a marker; its length if none."""
        for at in range(max(start, len(text) - self._longest_part), len(text)):
            if text[at:] in self._parts:
                return at
        return len(text)


@lru_cache(256)
def markers(*texts: str) -> Markers:
    """The markers of these texts, made once."""
    return Markers(*texts)


class Scanner:
    """The text and the place up to which it has been read.

    Decisions depend on the text alone: where one needs what has not come yet, the reader yields. What is read is
    recorded until `forget`, so that what turns out to be no call is not lost.
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
        """Say that nothing follows."""
        self._ended = True

    @property
    def at_end(self) -> bool:
        """Whether all has been read that will ever come."""
        return self._ended and self._at == len(self._text)

    def record(self, text: str) -> None:
        """Begin a record with `text`, which has just been read."""
        self._record = [text]
        self._recording = True

    def forget(self) -> None:
        """Drop what has been recorded; go on recording."""
        self._record.clear()

    def recorded(self) -> str:
        """End the record. Returns it."""
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
        """The next character, which is not consumed; "" at the end of the text."""
        while self._at == len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def sees(self, *options: str) -> Steps[str | None]:
        """The longest of `options` that follows, which is not consumed; None where none does."""
        longest = max(map(len, options))
        while True:
            rest = self._text[self._at : self._at + longest]
            if self._ended or not any(len(each) > len(rest) and each.startswith(rest) for each in options):
                return max((each for each in options if rest.startswith(each)), key=len, default=None)
            yield

    def one_of(self, *options: str) -> Steps[str | None]:
        """Consume the longest of `options` that follows. Returns None where none does."""
        found = yield from self.sees(*options)
        if found is not None:
            self._take(self._at + len(found))
        return found

    def expect(self, *options: str) -> Steps[str]:
        """Consume the longest of `options` that follows. Raises `NotACall` where none does."""
        found = yield from self.one_of(*options)
        if found is None:
            raise NotACall
        return found

    def close(self, option: str) -> Steps[bool]:
        """Consume `option`, or the part of it that the text ends with. Returns whether anything was consumed."""
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
        """Give `emit` text up to the first of `ends`, which is returned, not consumed; None at the end of the text."""
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
        """The same, and the end that was found is consumed."""
        found = yield from self.before(ends, emit)
        self._take(self._at + len(found or ""))
        return found

    def some(self, characters: re.Pattern[str], limit: int = sys.maxsize) -> Steps[str]:
        """Consume characters as long as they match, at most `limit`. Returns them."""
        pieces: list[str] = []
        while len(pieces) < limit and (character := (yield from self.peek())):
            if not characters.match(character):
                break
            pieces.append(self._take(self._at + 1))
        return "".join(pieces)

    def lines(self, text: str) -> Steps[None]:
        """Consume the lines of `text` with any white space before them. Raises `NotACall` where they do not follow."""
        for line in filter(None, text.split("\n")):
            yield from self.space()
            yield from self.expect(line)

    def close_lines(self, text: str) -> Steps[None]:
        """Consume as many lines of `text` as follow, with any white space before them."""
        for line in filter(None, text.split("\n")):
            yield from self.space()
            yield from self.close(line)

    def give(self, take: Callable[[str, int], int]) -> None:
        """Let `take(text, start)` read what has come and consume the text up to the place that it returns."""
        self._take(take(self._text, self._at))
