"""Formats with a tag for each argument; strings are written as they are, other values in JSON."""

import json
import re
from dataclasses import dataclass
from typing import Any

from numaserve.server.answers.tools.argument_types import TEXT, Types, types_of, value_in_json
from numaserve.server.answers.tools.call_grammar import (
    ANY_TEXT,
    Form,
    each_argument,
    regex,
    schema,
    sequence,
    tag,
    tags,
    takes_anything,
    text_form,
)
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.literals import text_in_json
from numaserve.server.answers.tools.scanner import NotACall, Scanner, Steps, markers
from numaserve.server.answers.tools.sink import Sink
from numaserve.server.answers.tools.types import Tool

_NAME = re.compile(r"[^\s{}()\"'<>]+")


@dataclass(frozen=True, kw_only=True)
class TaggedFormat(ToolFormat):
    """A call is `call_begin`, its name, `name_end`, arguments and `call_end`.

    An argument is `key_begin`, its name, `key_end`, its value and `value_end`. The tool's schema gives the type of a
    value: a string is plain text; other values are JSON, or a literal of Python, which some templates write.
    """

    call_begin: str
    name_end: str
    key_begin: str
    key_end: str
    value_end: str
    call_end: str

    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """See `ToolFormat`."""
        opening = self.begin + self.call_begin
        yield from scanner.lines(opening[opening.index(trigger) + len(trigger) :])
        while True:
            name = yield from self._name(scanner)
            sink.begin_call(name)
            scanner.forget()
            whole = yield from self._arguments(scanner, sink, name)
            scanner.forget()
            if not whole:
                return
            yield from scanner.space()
            if not self.begin or (yield from scanner.one_of(self.call_begin)) is None:
                break
        yield from scanner.close_lines(self.end)

    def _name(self, scanner: Scanner) -> Steps[str]:
        pieces: list[str] = []
        end = self.name_end.strip()
        found = yield from scanner.before(markers("\n", "<", *filter(None, [end])), pieces.append)
        name = "".join(pieces).strip()
        if found is None or _NAME.fullmatch(name) is None:
            raise NotACall
        yield from scanner.lines(end)
        return name

    def _arguments(self, scanner: Scanner, sink: Sink, name: str) -> Steps[bool]:
        """Read arguments and the end of the call. Return whether the end came; if not, the following text is the
        answer's."""
        tool = sink.tools.get(name)
        sink.arguments("{")
        comma = ""
        ends = self.call_end.split("\n")
        while True:
            yield from scanner.space()
            if (yield from scanner.close(self.key_begin)):
                yield from self._argument(scanner, sink, comma, tool.parameters if tool else None)
                comma = ", "
            elif (yield from scanner.close(ends[0])):
                sink.arguments("}")
                yield from scanner.close_lines("\n".join(ends[1:]))
                return True
            else:
                sink.arguments("" if scanner.at_end else "}")
                return False

    def _argument(self, scanner: Scanner, sink: Sink, comma: str, schema: dict[str, Any] | None) -> Steps[None]:
        pieces: list[str] = []
        key_end, *more = self.key_end.split("\n")
        found = yield from scanner.until(markers(key_end), pieces.append)
        text = "".join(pieces)
        key = text[: markers(key_end).part_at_end(text, 0)].strip()
        sink.arguments(f'{comma}"{text_in_json(key)}')
        if found is None:
            return
        sink.arguments('": ')
        for line in filter(None, more):
            yield from scanner.space()
            yield from scanner.one_of(line)
        if self.key_end.endswith("\n"):
            yield from scanner.one_of("\n")
        yield from self._value(scanner, sink, types_of(schema, key))
        scanner.forget()

    def _value(self, scanner: Scanner, sink: Sink, types: Types) -> Steps[None]:
        ends = markers(*{self.value_end.rstrip("\n"), self.value_end.strip("\n")})
        if types == TEXT:
            sink.arguments('"')
            found = yield from scanner.until(ends, lambda text: sink.arguments(text_in_json(text)))
            sink.arguments('"' if found else "")
        else:
            pieces: list[str] = []
            found = yield from scanner.until(ends, pieces.append)
            text = "".join(pieces)
            sink.arguments(value_in_json(text, types) if found else text)

    def render_call(self, call: Call, number: int) -> str:
        """See `ToolFormat`."""
        arguments = (
            f"{self.key_begin}{key}{self.key_end}{_written(value)}{self.value_end}"
            for key, value in call.arguments.items()
        )
        return f"{self.call_begin}{call.name}{self.name_end}{''.join(arguments)}{self.call_end}"

    def call_form(self, tool: Tool) -> Form:
        """See `ToolFormat`."""

        def argument(name: str, of: Any) -> Form:
            types = types_of(tool.parameters, name)
            # A string in a union of types has no quotes either, and a value of any type may be a string.
            value = text_form(of) if types == TEXT else schema(of) if types and not types & TEXT else ANY_TEXT
            return tag(f"{self.key_begin}{name}{self.key_end}", value, self.value_end)

        named = sequence(regex("[A-Za-z_][A-Za-z_0-9]*"), tag(self.key_end, ANY_TEXT, self.value_end))
        unnamed = tags([tag(self.key_begin, named, "")], "", at_least_one=False)
        arguments = unnamed if takes_anything(tool) else each_argument(tool, argument, "")
        return tag(f"{self.call_begin}{tool.name}{self.name_end}", arguments, self.call_end)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
