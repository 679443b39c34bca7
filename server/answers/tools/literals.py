"""Values written as in Python or in Gemma's formats, converted to JSON as they arrive."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from numaserve.server.answers.tools.json_cutter import is_scalar
from numaserve.server.answers.tools.scanner import Emit, Scanner, Steps, markers

_WORD = re.compile(r"[-+.0-9A-Za-z_]")
_OCTAL = re.compile("[0-7]")
_HEX = re.compile("[0-9a-fA-F]")
_ESCAPES = {
    "\\": "\\",
    "'": "'",
    '"': '"',
    "/": "/",
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
}
_CODE_LENGTHS = {"x": 2, "u": 4, "U": 8}
_BRACKETS = {"[": ("[", "]"), "(": ("[", ")"), "{": ("{", "}")}


@dataclass(frozen=True)
class Dialect:
    """The notation of values.

    `quotes` surround strings; strings in a quote of `escaping` have escapes as in Python and JSON. `words` map to their
    JSON. With `bare`, keys may lack quotes, and text that is neither quoted, nor a number, nor a word is a string.
    """

    quotes: tuple[str, ...]
    escaping: tuple[str, ...]
    words: Mapping[str, str]
    bare: bool = False


_JSON_WORDS = {word: word for word in ("true", "false", "null")}
WORDS = {"True": "true", "False": "false", "None": "null", **_JSON_WORDS}
_PYTHON_QUOTES = ('"""', "'''", '"', "'")
PYTHON = Dialect(quotes=_PYTHON_QUOTES, escaping=_PYTHON_QUOTES, words=WORDS)


class Broken(Exception):
    """No value follows. All text read so far has been emitted."""


def text_in_json(text: str) -> str:
    """Return `text` as it is written inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


@dataclass(frozen=True)
class ValueReader:
    """Reads values from a scanner and passes their JSON to `emit` as they arrive."""

    scanner: Scanner
    dialect: Dialect
    emit: Emit

    def value(self) -> Steps[None]:
        """Read a value. Raises `Broken` before the first character that cannot belong to it."""
        closing: list[str] = []  # a list instead of recursion: models may open any number of brackets
        while True:
            fresh = yield from self._item(closing)
            comma = False
            while closing:
                yield from self.scanner.space()
                found = yield from self.scanner.one_of(closing[-1], *(() if fresh else (",",)))
                if found is None:
                    break
                comma = fresh = found == ","
                if not comma:
                    self.emit("}" if closing.pop() == "}" else "]")
            if not closing:
                return
            if not fresh:
                raise Broken
            self.emit(", " if comma else "")
            if closing[-1] == "}":
                yield from self._key()

    def _item(self, closing: list[str]) -> Steps[bool]:
        """Read the beginning of a value and return whether it was a bracket."""
        yield from self.scanner.space()
        if quote := (yield from self.scanner.one_of(*self.dialect.quotes)):
            yield from self._string(quote)
        elif bracket := (yield from self.scanner.one_of(*_BRACKETS)):
            opening, end = _BRACKETS[bracket]
            self.emit(opening)
            closing.append(end)
            return True
        elif self.dialect.bare:
            yield from self._bare()
        else:
            self._word((yield from self.scanner.some(_WORD)))
        return False

    def _key(self) -> Steps[None]:
        yield from self.scanner.space()
        end = ""  # the end of the key in JSON
        if quote := (yield from self.scanner.one_of(*self.dialect.quotes)):
            yield from self._string(quote)
            yield from self.scanner.space()
        elif self.dialect.bare and not (yield from self.scanner.sees(":", ",", "}")):
            pieces: list[str] = []
            yield from self.scanner.before(markers(":", ",", "}"), pieces.append)
            self.emit(f'"{text_in_json("".join(pieces).strip())}')
            end = '"'
        if (yield from self.scanner.one_of(":")) is None:
            raise Broken
        self.emit(f"{end}: ")

    def _bare(self) -> Steps[None]:
        pieces: list[str] = []
        end = yield from self.scanner.before(markers(",", "}", "]"), pieces.append)
        text = "".join(pieces).strip()
        if end is None or not text:
            self.emit("".join(pieces))
            raise Broken
        self.emit(self._scalar(text) or json.dumps(text, ensure_ascii=False))

    def _word(self, word: str) -> None:
        value = self._scalar(word)
        self.emit(value or word)
        if value is None:
            raise Broken

    def _scalar(self, word: str) -> str | None:
        return word if is_scalar(word) else self.dialect.words.get(word)

    def _string(self, quote: str) -> Steps[None]:
        self.emit('"')
        ends = markers(quote, "\\") if quote in self.dialect.escaping else markers(quote)
        while (end := (yield from self.scanner.until(ends, lambda text: self.emit(text_in_json(text))))) == "\\":
            yield from self._escape()
        if end is None:
            raise Broken
        self.emit('"')

    def _escape(self) -> Steps[None]:
        """Read the text after a backslash. A backslash that begins no escape is an ordinary character, as in Python."""
        kind = yield from self.scanner.one_of(*_ESCAPES, *_CODE_LENGTHS, "\n")
        if kind is None:
            digits = yield from self.scanner.some(_OCTAL, 3)
            self.emit(text_in_json(chr(int(digits, 8)) if digits else "\\"))
        elif kind in _CODE_LENGTHS:
            digits = yield from self.scanner.some(_HEX, _CODE_LENGTHS[kind])
            whole = len(digits) == _CODE_LENGTHS[kind] and int(digits, 16) <= 0x10FFFF
            # ASCII only: models write halves of surrogate pairs as in JSON, and a half alone is no character.
            self.emit(json.dumps(chr(int(digits, 16)))[1:-1] if whole else text_in_json(f"\\{kind}{digits}"))
        elif kind != "\n":
            self.emit(text_in_json(_ESCAPES[kind]))


def in_json(text: str, dialect: Dialect) -> str | None:
    """Return the JSON of a value that is all of `text`; None if `text` is not one value."""
    scanner = Scanner()
    scanner.feed(text)
    scanner.end()
    pieces: list[str] = []
    try:
        next(ValueReader(scanner, dialect, pieces.append).value(), None)
    except Broken:
        return None
    return "".join(pieces) if scanner.at_end else None
