"""Gemma's formats: call:f{a:1,b:"x"}, where a token stands for the quotes."""

import json
import re
from dataclasses import dataclass

from numaserve.server.tools.format import Call, ToolFormat
from numaserve.server.tools.literals import WORDS, Broken, Dialect, ValueReader
from numaserve.server.tools.scanner import NotACall, Scanner, Steps, markers
from numaserve.server.tools.sink import Sink

_NAME = re.compile(r"[-.0-9A-Za-z_]")


@dataclass(frozen=True, kw_only=True)
class BracedFormat(ToolFormat):
    """A call is `call_begin`, its name, its arguments with bare keys, `call_end`; `quote` is around strings."""

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
        dialect = Dialect(quotes=(self.quote,), words=WORDS, bare=True)
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
