"""What callers give to the parsers of output, and what they get."""

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments, None for any object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of the call number `call` of an answer, counted from 0.

    The first piece of a call has its name, the others have not; the pieces of `arguments` together are JSON text when
    the call is complete and the model wrote it well. `id` is None where the model wrote none: the caller makes one.
    """

    call: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class Parsed:
    """What a piece of output adds to the answer, to the thought and to the calls."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    ends_thought: bool = field(default=False, compare=False)


class OutputParser(Protocol):
    """Reads one answer. Wherever the text is cut, the results joined are equal. Never raises for what a model wrote."""

    def push(self, text: str) -> Parsed:
        """Take the next piece, special tokens spelled out. Returns what is certain so far."""

    def finish(self) -> Parsed:
        """Take the end of the text. Returns what was held back."""
