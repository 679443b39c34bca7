"""Formats whose calls are JSON objects, such as {"name": "f", "arguments": {"a": 1}}."""

import json
from dataclasses import dataclass, field

from numaserve.server.answers.tools.call_grammar import Form, arguments_schema, schema, tag
from numaserve.server.answers.tools.format import Call, ToolFormat
from numaserve.server.answers.tools.json_call import CallReader, Keys
from numaserve.server.answers.tools.scanner import Scanner, Steps, markers
from numaserve.server.answers.tools.sink import Sink
from numaserve.server.answers.tools.types import Tool


@dataclass(frozen=True, kw_only=True)
class JsonFormat(ToolFormat):
    """Each call is an object between `call_begin` and `call_end`. If `begin` ends with a bracket, the calls are a list.

    `after` may follow the end.
    """

    call_begin: str = ""
    call_end: str = ""
    after: str = ""
    keys: Keys = field(default_factory=Keys)

    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """See `ToolFormat`."""
        end = self.call_end or self.end.removeprefix("]") or self.after
        calls = CallReader(scanner, sink, self.keys, markers(*{end, end.strip()} - {""}), known=not trigger)
        yield from scanner.space()
        bracket = "[" if self.begin.endswith("[") and not trigger.endswith("[") else ""
        listed = trigger.endswith("[") or bool(bracket and (yield from scanner.one_of(bracket)))
        between = "," if listed else self.separator.strip()
        yield from scanner.space()
        while (yield from calls.read()):
            yield from scanner.space()
            if not between or (yield from scanner.one_of(between)) is None:
                break
            yield from scanner.space()
        else:
            return  # the end has been consumed with the broken arguments
        if listed:
            yield from scanner.expect("]")
            yield from scanner.close_lines(self.end.removeprefix("]"))
        yield from scanner.close_lines(self.call_end + self.after)

    def render_call(self, call: Call, number: int) -> str:
        """See `ToolFormat`."""
        members = {self.keys.name: call.name, self.keys.arguments[0]: call.arguments}
        return f"{self.call_begin}{json.dumps(members, ensure_ascii=False)}{self.call_end}"

    def call_form(self, tool: Tool) -> Form:
        """See `ToolFormat`."""
        name, arguments = json.dumps(self.keys.name), json.dumps(self.keys.arguments[0])
        begin = f"{self.call_begin}{{{name}: {json.dumps(tool.name, ensure_ascii=False)}, {arguments}: "
        return tag(begin, schema(arguments_schema(tool)), f"}}{self.call_end}")
