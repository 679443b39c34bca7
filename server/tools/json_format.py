"""Formats in which a call is an object in JSON, such as {"name": "f", "arguments": {"a": 1}}."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from numaserve.server.tools.format import Call, ToolFormat
from numaserve.server.tools.json_call import CallReader, Keys
from numaserve.server.tools.scanner import Scanner, Steps, markers
from numaserve.server.tools.sink import Sink
from numaserve.server.tools.types import Tool


@dataclass(frozen=True, kw_only=True)
class JsonFormat(ToolFormat):
    """Calls as JSON between `begin` and `end`; either may be empty.

    With `listed` they are a list; otherwise each call has a `begin` and `end` of its own, and `separator` is between
    two calls. Readers accept white space around each of these, and take calls without `end`.
    """

    begin: str = ""
    end: str = ""
    separator: str = "\n"
    listed: bool = False
    keys: Keys = field(default_factory=Keys)

    def read(self, scanner: Scanner, sink: Sink, trigger: str) -> Steps[None]:
        """See `ToolFormat`."""
        calls = CallReader(scanner, sink, self.keys, markers(*{self.end, self.end.strip()} - {""}), known=not trigger)
        yield from scanner.space()
        listed = self.listed and (yield from scanner.one_of("[")) is not None
        between = "," if listed else self.separator.strip()
        while (yield from calls.read()):
            yield from scanner.space()
            if not between or (yield from scanner.one_of(between)) is None:
                break
            yield from scanner.space()
        else:
            return  # the end has been read with broken arguments
        if listed:
            yield from scanner.expect("]")
            yield from scanner.space()
        if self.end:
            yield from scanner.close(self.end.strip())

    def render(self, calls: Sequence[Call], tools: Sequence[Tool] = ()) -> str:
        """See `ToolFormat`."""
        texts = [
            json.dumps({self.keys.name: call.name, self.keys.arguments[0]: call.arguments}, ensure_ascii=False)
            for call in calls
        ]
        if self.listed:
            return f"{self.begin}[{', '.join(texts)}]{self.end}"
        return self.separator.join(f"{self.begin}{text}{self.end}" for text in texts)
