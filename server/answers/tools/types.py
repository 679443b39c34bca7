"""The input and the results of output parsers."""

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments; None: any object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of the call number `call` of an answer, counted from 0.

    Only the first piece of a call has its name. The pieces of `arguments` joined are JSON text if the call is complete
    and the model wrote valid JSON. `id` is None if the model wrote none; the caller then makes one.
    """

    call: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class Parsed:
    """The text that a piece of output adds to the answer, to the thought and to the calls."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    ends_thought: bool = field(default=False, compare=False)


class OutputParser(Protocol):
    """Parses one answer. Joined results do not depend on where the text is cut. Model output never raises an error."""

    def push(self, text: str) -> Parsed:
        """Take the next piece, with special tokens spelled out, and return the results that are certain so far."""

    def finish(self) -> Parsed:
        """Take the end of the text and return the results that were held back."""
