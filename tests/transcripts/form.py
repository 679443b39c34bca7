"""The form of transcripts: reading of files, and the lines of requests and answers."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILES = sorted(Path(__file__).with_name("data").glob("*.txt"))
_REQUEST = re.compile(r"> ([A-Z]+) (/\S*)(?: (\{.*))?$")
_REPEATED = re.compile(r"\$(.+)\*([0-9]+)$", re.DOTALL)
_RECORDED = ("+", "<")


@dataclass(frozen=True)
class Exchange:
    """A request, and the lines that are recorded of it."""

    given: tuple[str, ...]  # the lines of the file before those that are recorded
    recorded: tuple[str, ...]
    method: str
    path: str
    headers: Mapping[str, str]
    body: str | None


@dataclass
class Scene:
    """Requests that meet one new engine."""

    name: str
    model: str
    engine: dict[str, Any]
    exchanges: list[Exchange] = field(default_factory=list)


@dataclass
class _Settings:
    model: str = "text"
    engine: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> "_Settings":
        return _Settings(self.model, dict(self.engine), self.path, dict(self.fields), dict(self.values))

    def read(self, line: str) -> None:
        word, _, rest = line.removeprefix("@ ").partition(" ")
        name, _, text = rest.partition(" ")
        match word:
            case "model":
                self.model = rest
            case "engine":
                self.engine = json.loads(rest)
            case "post":
                self.path, self.fields = name, self.filled(json.loads(text or "{}"))
            case "let":
                self.values[name] = self.filled(json.loads(text))
            case _:
                raise ValueError(f"unknown line: {line}")

    def filled(self, value: Any) -> Any:
        """Return a JSON value with what its texts stand for."""
        match value:
            case str() if found := _REPEATED.match(value):
                each = json.loads(found[1]) if found[1].startswith("[") else found[1]
                return each * int(found[2])
            case str() if value.startswith("$"):
                return self.values[value[1:]]
            case list():
                return [self.filled(each) for each in value]
            case dict():
                return {key: self.filled(each) for key, each in value.items() if each != "$drop"}
            case _:
                return value

    def body(self, text: str, *, is_default: bool) -> str:
        try:
            value = json.loads(text)
        except ValueError:
            return text  # a body that is no JSON
        if is_default:
            value = self.fields | value
        return json.dumps(self.filled(value), ensure_ascii=False)


def read(file: Path) -> list[Scene]:
    """Return the scenes of a file."""
    scenes: list[Scene] = []
    common = settings = _Settings()
    for lines in _blocks(file.read_text()):
        given = [line for line in lines if not line.startswith(_RECORDED)]
        for line in given:
            if line.startswith("== "):
                settings = common.copy()
                scenes.append(Scene(line.removeprefix("== "), "", {}))
            elif line.startswith("@ "):
                settings.read(line)
        requested = [line for line in given if line.startswith(">")]
        if requested:
            scenes[-1].model, scenes[-1].engine = settings.model, settings.engine
            scenes[-1].exchanges.append(_exchange(settings, lines, given, requested))
    return scenes


def _exchange(settings: _Settings, lines: list[str], given: list[str], requested: list[str]) -> Exchange:
    found = _REQUEST.match(requested[0])
    text = "\n".join(line.removeprefix("> ") for line in requested[bool(found) :])
    body = settings.body(text, is_default=found is None) if text else None
    method, path, headers = found.groups() if found else ("POST", settings.path, None)
    recorded = tuple(line for line in lines if line.startswith(_RECORDED))
    return Exchange(tuple(given), recorded, method, path, json.loads(headers or "{}"), body)


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield the lines up to the end of each request and its recorded lines."""
    block: list[str] = []
    for line in text.splitlines():
        asked = any(each.startswith(">") for each in block)
        is_body = line.startswith(">") and not _REQUEST.match(line) and block[-1:] and block[-1].startswith("> POST /")
        if asked and not is_body and not line.startswith(_RECORDED):
            yield block
            block = []
        block.append(line)
    yield block


def written(exchanges: Iterable[tuple[Exchange, list[str]]]) -> str:
    """Return a file with newly recorded lines."""
    lines = [line for each, recorded in exchanges for line in (*each.given, *recorded)]
    return "\n".join(lines) + "\n"


def shortened(lines: list[str]) -> Iterator[str]:
    """Yield lines without the beginning that each shares with the line before, where that is long."""
    before = ""
    for line in lines:
        same = next((at for at, (one, other) in enumerate(zip(before, line, strict=False)) if one != other), 0)
        cut = max(line.rfind(mark, 0, same) for mark in ",[{")
        yield f"… {line[cut + 1 :]}" if cut > 40 else line
        before = line
