"""The collector of a parser's results, until they are taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from numaserve.server.answers.tools.types import Parsed, Tool, ToolCallDelta

SPACE = " \t\r\n"


class _Text:
    """A text whose trailing white space is held back until more text follows; `skip` is dropped at its beginning."""

    def __init__(self, skip: str = "") -> None:
        self.skip = skip
        self._begun = False  # whether more than white space has arrived
        self._pieces: list[str] = []
        self._space: list[str] = []
        self._before = ""  # inserted before the next text, if there is any

    def add(self, text: str) -> None:
        if self.skip:
            text = text.lstrip(self.skip)
        if not text:
            return
        self.skip = ""
        kept = text.rstrip(SPACE)
        if kept:
            self._begun = True
            self._pieces.extend((self._before, *self._space, kept))
            self._before = ""
            self._space.clear()
        self._space.append(text[len(kept) :])

    def trim(self, skip: str, before: str = "") -> None:
        """Drop the trailing white space. Later text loses `skip` at its beginning and is preceded by `before`."""
        self._space.clear()
        self._before = before if self._begun else ""
        self.skip = skip

    def end(self) -> None:
        self._pieces.extend(self._space)
        self._space.clear()

    def take(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


@dataclass(frozen=True)
class _Delta:
    call: int
    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)


class Sink:
    """The answer, the thought and the calls of one output, in deltas.

    White space around a call is only a separator and is dropped, and so are line breaks after a thought and white space
    around it. Several thoughts are separated by line breaks.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._content = _Text()
        self._reasoning = _Text(skip=SPACE)
        self._calls: list[_Delta] = []
        self._ends_thought = False
        self._begun = -1  # number of the latest call that has begun

    def content(self, text: str) -> None:
        """Append to the answer."""
        self._content.add(text)

    def reasoning(self, text: str) -> None:
        """Append to the thought."""
        self._reasoning.add(text)

    def end_thought(self) -> None:
        """Mark the end of the thought."""
        self._ends_thought = True
        self._reasoning.trim(skip=SPACE, before="\n")
        self._content.skip = "\n"

    def end_answer(self) -> None:
        """Mark the end of the answer; white space around its end mark is dropped."""
        self._content.trim(skip=SPACE)

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """Begin the next call."""
        self._content.trim(skip=SPACE)
        self._begun += 1
        self._calls.append(_Delta(self._begun, call_id, name))

    def arguments(self, text: str) -> None:
        """Append to the arguments of the call that has begun."""
        if not text:
            return
        if not self._calls:
            self._calls.append(_Delta(self._begun))
        self._calls[-1].arguments.append(text)

    def end(self) -> None:
        """Mark the end of the output."""
        self._content.end()
        self._reasoning.end()

    def take(self) -> Parsed:
        """Return the results since the last call of this method."""
        calls = tuple(ToolCallDelta(each.call, each.id, each.name, "".join(each.arguments)) for each in self._calls)
        self._calls.clear()
        ends_thought, self._ends_thought = self._ends_thought, False
        return Parsed(self._content.take(), self._reasoning.take(), calls, ends_thought)
