"""Gemma's formats: call:f{a:1,b:"x"}, with a token instead of the quotes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numaserve.server.answers.tools.argument_types import TEXT, Types, types_in
from numaserve.server.answers.tools.call_grammar import (
    Form,
    arguments_schema,
    const,
    listed,
    one_of,
    part,
    regex,
    schema,
    sequence,
    tag,
    tags,
    text_form,
)
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.literals import WORDS, Broken, Dialect, ValueReader
from numaserve.server.answers.tools.scanner import NotACall, Scanner, Steps, markers
from numaserve.server.answers.tools.sink import Sink
from numaserve.server.answers.tools.types import Tool

_NAME = re.compile(r"[-.0-9A-Za-z_]")


@dataclass(frozen=True, kw_only=True)
class BracedFormat(ToolFormat):
    """A call is `call_begin`, its name, its arguments with bare keys, and `call_end`; `quote` surrounds strings."""

    call_begin: str
    call_end: str
    quote: str
    separator: str = ""

    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """See `ToolFormat`."""
        yield from scanner.lines(self.call_begin.removeprefix(trigger))
        name = yield from scanner.some(_NAME)
        if not name or (yield from scanner.sees("{")) is None:
            raise NotACall
        sink.begin_call(name)
        # Models also write strings with JSON's quotes.
        dialect = Dialect(quotes=(self.quote, '"'), escaping=('"',), words=WORDS, bare=True)
        try:
            yield from ValueReader(scanner, dialect, sink.arguments).value()
            yield from scanner.close_lines(self.call_end)
        except Broken:
            yield from scanner.until(markers(self.call_end), sink.arguments)
        scanner.forget()

    def render_call(self, call: Call, number: int) -> str:
        """See `ToolFormat`."""
        return f"{self.call_begin}{call.name}{self._written(call.arguments)}{self.call_end}"

    def _written(self, value: object) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{self._written(each)}' for key, each in value.items())}}}"
        if isinstance(value, list):
            return f"[{','.join(map(self._written, value))}]"
        return json.dumps(value)

    def call_form(self, tool: Tool) -> Form:
        """See `ToolFormat`."""
        whole = arguments_schema(tool)
        return tag(f"{self.call_begin}{tool.name}", self._object(whole, whole), self.call_end)

    def _object(self, of: Mapping[str, Any], root: Mapping[str, Any]) -> Form:
        properties, required = of.get("properties"), of.get("required")
        if isinstance(properties, Mapping):
            needed = required if isinstance(required, list) else []
            members = listed(
                [
                    (sequence(const(f"{name}:"), self._value(each, root)), name in needed)
                    for name, each in properties.items()
                ],
                ",",
            )
        else:
            member = sequence(regex("[A-Za-z_][A-Za-z_0-9]*"), const(":"), self._text(True))
            members = tags([tag("", member, "")], ",", at_least_one=False)
        return sequence(const("{"), members, const("}"))

    def _value(self, of: object, root: Mapping[str, Any]) -> Form:
        types = types_in(of, root)
        if types == TEXT or not types or not isinstance(of, Mapping):
            return self._text(of)
        if types == {"object"} and "$ref" not in of:
            return self._object(of, root)
        if types == {"array"} and "$ref" not in of and not _is_plain(types_in(of.get("items"), root)):
            item = tag("", self._value(of.get("items"), root), "")
            return sequence(const("["), tags([item], ",", at_least_one=False), const("]"))
        if types & TEXT:
            rest = sorted(types - TEXT - {"object", "array"})
            return one_of(self._text(True), *([schema({"type": rest})] if rest else []))
        return schema(part(of, root))

    def _text(self, of: object) -> Form:
        return tag(self.quote, text_form(of), self.quote)


def _is_plain(types: Types) -> bool:
    """Return whether values of these types are written as in JSON."""
    return types is not None and not types & {"string", "object", "array"}
