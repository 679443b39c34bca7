"""Formats with calls written as in Python, in a list or in lines: [f(a=1, b="x"), g()]."""

import json
import re
from dataclasses import dataclass

from numaserve.server.answers.tools.call_grammar import (
    Form,
    const,
    each_argument,
    regex,
    schema,
    sequence,
    tag,
    tags,
    takes_anything,
)
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.literals import PYTHON, Broken, ValueReader
from numaserve.server.answers.tools.scanner import NotACall, Scanner, Steps, markers
from numaserve.server.answers.tools.sink import Sink
from numaserve.server.answers.tools.types import Tool

_NAME = re.compile(r"[-.0-9A-Za-z_]")
_KEY = re.compile(r"\w")


@dataclass(frozen=True, kw_only=True)
class PythonicFormat(ToolFormat):
    """Calls with keyword arguments, whose values are literals of Python.

    `in_lines`: each call is on a line, and values are in JSON; otherwise the calls are a list.
    """

    separator: str = ", "
    in_lines: bool = False

    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """See `ToolFormat`."""
        yield from scanner.lines("" if self.in_lines else "[")
        while True:
            yield from self._name(scanner, sink, known=not trigger)
            try:
                yield from self._arguments(scanner, sink)
            except Broken:
                yield from scanner.until(markers(*{self._end} - {""}), sink.arguments)
                return
            finally:
                scanner.forget()
            if not (yield from self._goes_on(scanner)):
                break
        if not self.in_lines:
            yield from scanner.expect("]")
        yield from scanner.close_lines(self._end)

    @property
    def _end(self) -> str:
        """The end after the bracket of a list."""
        return self.end if self.in_lines else self.end[1:]

    def _goes_on(self, scanner: Scanner) -> Steps[bool]:
        """Return whether another call follows."""
        yield from scanner.space()
        if self.in_lines:
            return _NAME.match((yield from scanner.peek())) is not None
        return (yield from scanner.one_of(",")) is not None

    def _name(self, scanner: Scanner, sink: Sink, known: bool) -> Steps[None]:
        yield from scanner.space()
        name = yield from scanner.some(_NAME)
        if not name or (known and name not in sink.tools):
            raise NotACall
        yield from scanner.expect("(")
        sink.begin_call(name)

    def _arguments(self, scanner: Scanner, sink: Sink) -> Steps[None]:
        sink.arguments("{")
        reader = ValueReader(scanner, PYTHON, sink.arguments)
        comma = ""
        yield from scanner.space()
        while (yield from scanner.one_of(")")) is None:
            key = yield from scanner.some(_KEY)
            yield from scanner.space()
            written = json.dumps(key, ensure_ascii=False)
            if (yield from scanner.one_of("=")) is None:
                sink.arguments(comma + written[:-1] if key else "")
                raise Broken
            sink.arguments(f"{comma}{written}: ")
            yield from reader.value()
            yield from scanner.space()
            if (yield from scanner.sees(")")) is None and (yield from scanner.one_of(",")) is None:
                raise Broken
            yield from scanner.space()
            comma = ", "
        sink.arguments("}")

    def render_call(self, call: Call, number: int) -> str:
        """See `ToolFormat`."""
        arguments = (
            (key, json.dumps(value, ensure_ascii=False) if self.in_lines else repr(value))
            for key, value in call.arguments.items()
        )
        return f"{call.name}({', '.join(f'{key}={value}' for key, value in arguments)})"

    def call_form(self, tool: Tool) -> Form:
        """See `ToolFormat`. Values are in JSON; the reader accepts JSON's words too."""
        any_argument = tag("", sequence(regex("[A-Za-z_][A-Za-z_0-9]*"), const("="), schema(True)), "")
        arguments = (
            tags([any_argument], ", ", at_least_one=False)
            if takes_anything(tool)
            else each_argument(tool, lambda name, of: sequence(const(f"{name}="), schema(of)), ", ")
        )
        return tag(f"{tool.name}(", arguments, ")")
