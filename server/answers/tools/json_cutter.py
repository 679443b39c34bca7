"""The extraction of JSON values from text that arrives in pieces."""

import json
import re
from enum import Enum, auto

from numaserve.server.answers.tools.scanner import Emit, NotACall, Scanner, Steps

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')  # characters of a string without special meaning
_SCALAR_PART = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_PART = re.compile(r"\\(u[0-9a-fA-F]{0,3})?")


class _Next(Enum):
    """The characters that may follow, white space excepted."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


def is_scalar(text: str) -> bool:
    """Return whether `text` is a number, true, false or null."""
    return _SCALAR.fullmatch(text) is not None


class JsonCutter:
    """Consumes the characters of one JSON value and finds its end.

    A raw control character in a string becomes its escape: models write code over several lines that way, and every
    JSON parser would refuse it. Any other invalid JSON makes the value broken.
    """

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._next = _Next.VALUE
        self._open: list[str] = []  # the closing brackets of the open objects and lists, the innermost last
        self._string = False
        self._escape = ""  # an incomplete escape sequence
        self._scalar: list[str] = []  # a number, true, false or null that may continue

    def take(self, text: str, start: int, emit: Emit) -> int:
        """Pass the part of the value that begins at `start` to `emit`, and return its end."""
        at = start
        pieces: list[str] = []
        while at < len(text) and not self.done and not self.broken:
            step = self._in_string if self._string else self._in_scalar if self._scalar else self._outside
            at = step(text, at, pieces)
        if pieces:
            emit("".join(pieces))
        return at

    def end(self) -> None:
        """Mark the end of the text: an unfinished number is then complete, any other unfinished value is broken."""
        if self._scalar:
            self._end_scalar()
        if not self.done:
            self.broken = True

    def _in_string(self, text: str, at: int, pieces: list[str]) -> int:
        if self._escape:
            return self._in_escape(text, at, pieces)
        end = _end(_PLAIN, text, at)
        pieces.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == "\\":
            self._escape = "\\"
        elif text[end] == '"':
            pieces.append('"')
            self._string = False
            self._next = _Next.COLON if self._next in {_Next.KEY, _Next.KEY_OR_END} else self._next
            if self._next is not _Next.COLON:
                self._end_value()
        else:
            pieces.append(json.dumps(text[end])[1:-1])
        return end + 1

    def _in_escape(self, text: str, at: int, pieces: list[str]) -> int:
        escape = self._escape + text[at]
        if _ESCAPE.fullmatch(escape):
            pieces.append(escape)
            self._escape = ""
        elif _ESCAPE_PART.fullmatch(escape):
            self._escape = escape
        else:
            pieces.append(self._escape)
            self.broken = True
            return at
        return at + 1

    def _in_scalar(self, text: str, at: int, pieces: list[str]) -> int:
        end = _end(_SCALAR_PART, text, at)
        self._scalar.append(text[at:end])
        pieces.append(text[at:end])
        if end < len(text):
            self._end_scalar()
        return end

    def _end_scalar(self) -> None:
        if is_scalar("".join(self._scalar)):
            self._scalar.clear()
            self._end_value()
        else:
            self.broken = True

    def _end_value(self) -> None:
        self._next = _Next.COMMA_OR_END
        self.done = not self._open

    def _outside(self, text: str, at: int, pieces: list[str]) -> int:
        end = _end(_SPACE, text, at)
        pieces.append(text[at:end])
        if end == len(text):
            return end
        character = text[end]
        if character not in '{}[],:"' and self._next in {_Next.VALUE, _Next.VALUE_OR_END}:
            self.broken = _SCALAR_PART.fullmatch(character) is None
            return end if self.broken else self._in_scalar(text, end, pieces)
        if not self._accept(character):
            self.broken = True
            return end
        pieces.append(character)
        return end + 1

    def _accept(self, character: str) -> bool:
        """Return whether `character` is allowed here, outside strings and scalars; advance the state if it is."""
        expected = self._next
        if expected is _Next.COLON:
            self._next = _Next.VALUE
            return character == ":"
        if expected is _Next.COMMA_OR_END and character == ",":
            self._next = _Next.KEY if self._open[-1] == "}" else _Next.VALUE
            return True
        if character in "}]":
            return self._close(character)
        if character == '"':
            self._string = True
            return expected is not _Next.COMMA_OR_END
        if character not in "{[" or expected not in {_Next.VALUE, _Next.VALUE_OR_END}:
            return False
        self._open.append("}" if character == "{" else "]")
        self._next = _Next.KEY_OR_END if character == "{" else _Next.VALUE_OR_END
        return True

    def _close(self, character: str) -> bool:
        closes = self._next in {_Next.COMMA_OR_END, _Next.VALUE_OR_END, _Next.KEY_OR_END}
        if not closes or self._open.pop() != character:
            return False
        self._end_value()
        return True


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def is_json(text: str) -> bool:
    """Return whether `text` is one JSON value without white space around it."""
    cutter = JsonCutter()
    end = cutter.take(text, 0, lambda _: None)
    if not cutter.done:
        cutter.end()
    return cutter.done and end == len(text) and not text[:1].isspace()


def copy_json(scanner: Scanner, emit: Emit) -> Steps[bool]:
    """Copy the JSON value that follows to `emit` as it arrives, and return whether it is complete.

    The character that breaks a value is not consumed.
    """
    cutter = JsonCutter()
    while not cutter.done and not cutter.broken:
        if (yield from scanner.peek()):
            scanner.give(lambda text, start: cutter.take(text, start, emit))
        else:
            cutter.end()
    return cutter.done


def read_json(scanner: Scanner) -> Steps[str]:
    """Return the text of the JSON value that follows. Raises `NotACall` if none follows."""
    pieces: list[str] = []
    if not (yield from copy_json(scanner, pieces.append)):
        raise NotACall
    return "".join(pieces)


def read_string(scanner: Scanner) -> Steps[str]:
    """Return the JSON string that follows, decoded. Raises `NotACall` if none follows."""
    if (yield from scanner.peek()) != '"':
        raise NotACall
    return str(json.loads((yield from read_json(scanner))))
