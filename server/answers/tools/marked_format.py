"""Formats with a head, which holds the name, followed by arguments in JSON, between special tokens."""

import json
import re
from dataclasses import dataclass

from numaserve.server.answers.tools.call_grammar import Form, arguments_schema, const, regex, schema, sequence, tag
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.json_call import NO_ARGUMENTS, read_arguments
from numaserve.server.answers.tools.scanner import NotACall, Scanner, Steps, markers
from numaserve.server.answers.tools.sink import Sink
from numaserve.server.answers.tools.types import Tool


@dataclass(frozen=True, kw_only=True)
class MarkedFormat(ToolFormat):
    """A call is `call_begin`, its head, `arguments_begin`, its arguments in JSON, and `call_end`.

    `head` builds the head from a call's `name`, `number` and `id`; `head_pattern` parses it.
    """

    call_begin: str
    arguments_begin: str
    call_end: str = ""
    head: str = "{name}"
    head_pattern: str = "(?P<name>.+)"

    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """See `ToolFormat`."""
        if trigger != self.call_begin:
            yield from scanner.lines(self.call_begin)
        while (yield from self._call(scanner, sink)):
            yield from scanner.space()
            if (yield from scanner.one_of(self.call_begin)) is None:
                yield from scanner.close_lines(self.end)
                return

    def _call(self, scanner: Scanner, sink: Sink) -> Steps[bool]:
        """Read a call and return whether its arguments were JSON."""
        pieces: list[str] = []
        stops = {self.call_begin, self.call_end.strip(), "\n"} - {""}
        found = yield from scanner.before(markers(self.arguments_begin, *stops), pieces.append)
        head = re.fullmatch(self.head_pattern, "".join(pieces).strip())
        if found != self.arguments_begin or head is None:
            raise NotACall
        yield from scanner.expect(self.arguments_begin)
        parts = head.groupdict()
        sink.begin_call(parts["name"], parts.get("id"))
        yield from scanner.space()
        if self.call_end and (yield from scanner.close(self.call_end.strip())):
            sink.arguments(NO_ARGUMENTS)
            scanner.forget()
            return True
        if not (yield from read_arguments(scanner, sink, markers(*{self.call_end, self.call_end.strip()} - {""}))):
            return False
        yield from scanner.close_lines(self.call_end)
        return True

    def render_call(self, call: Call, number: int) -> str:
        """See `ToolFormat`."""
        head = self.head.format(name=call.name, number=number, id=call.id)
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        return f"{self.call_begin}{head}{self.arguments_begin}{arguments}{self.call_end}"

    def call_form(self, tool: Tool) -> Form:
        """See `ToolFormat`."""
        before, number, after = self.head.partition("{number}")
        arguments = schema(arguments_schema(tool))
        begin = self.call_begin + before.format(name=tool.name)
        if number:
            content = sequence(regex("[0-9]+"), const(after + self.arguments_begin), arguments)
            return tag(begin, content, self.call_end)
        return tag(begin + self.arguments_begin, arguments, self.call_end)
