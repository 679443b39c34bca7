"""A whole answer, assembled from its chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

from numaserve.server.answers.tools.types import ToolCallDelta
from numaserve.server.generation.answer.reading import AnswerEnd, Chunk


@dataclass
class WholeCall:
    """A call of an answer; `arguments` is JSON text, unless the model wrote invalid JSON."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class WholeAnswer:
    """One answer, as far as it has been generated."""

    finish_reason: AnswerEnd | None = None
    calls: list[WholeCall] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk."""
        self._texts.append(chunk.text)
        self._thoughts.append(chunk.reasoning)
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self.add_calls(chunk)

    def add_calls(self, chunk: Chunk) -> None:
        """Add only the calls of the next chunk."""
        for delta in chunk.tool_calls:
            self._add_call(delta)

    def _add_call(self, delta: ToolCallDelta) -> None:
        if delta.name is not None:
            self.calls.append(WholeCall(delta.id or "", delta.name))
        self.calls[-1].arguments += delta.arguments

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """The reasoning before the answer's text."""
        return "".join(self._thoughts)
