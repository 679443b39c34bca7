"""The reader of an answer: a thought, text, and calls in the text."""

from collections.abc import Sequence

from numaserve.server.answers.reasoning.format import ReasoningFormat
from numaserve.server.answers.tools.format import ToolFormat
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.answers.tools.scanner import Markers, NotACall, Scanner, Steps, markers
from numaserve.server.answers.tools.sink import Sink
from numaserve.server.answers.tools.types import OutputParser, Parsed, Tool


class AnswerReader:
    """Separates the parts of an answer by a format of tool calls, a format of thoughts, or both."""

    def __init__(
        self, scanner: Scanner, sink: Sink, calls: ToolFormat | None, thoughts: ReasoningFormat | None
    ) -> None:
        self._scanner = scanner
        self._sink = sink
        self._calls = calls
        self._thoughts = thoughts
        self._triggers = calls.triggers if calls else ()
        self._answer_end = ""

    def read(self, inside: bool) -> Steps[None]:
        """Read the whole answer; `inside`: the text begins inside a thought."""
        thoughts = self._thoughts
        if thoughts:
            yield from self._leading_thought(thoughts, inside)
        if self._calls and self._calls.bare:
            yield from self._bare_call(self._calls)
        while (found := (yield from self._scanner.until(self._marks(), self._sink.content))) is not None:
            if self._calls and found in self._triggers:
                yield from self._call(self._calls, found)
            elif thoughts and found == thoughts.start:
                yield from self._thought(thoughts)
            else:
                self._answer_end = ""
                self._sink.end_answer()

    def _marks(self) -> Markers:
        start = self._thoughts.start if self._thoughts and self._thoughts.anywhere else ""
        return markers(*{*self._triggers, start, self._answer_end} - {""})

    def _leading_thought(self, thoughts: ReasoningFormat, inside: bool) -> Steps[None]:
        self._scanner.record("")
        yield from self._scanner.space()
        found = yield from self._scanner.one_of(thoughts.start)  # models repeat the mark that the prompt has written
        space = self._scanner.recorded()
        if inside or found:
            yield from self._thought(thoughts)
        else:
            self._sink.content(space)

    def _thought(self, thoughts: ReasoningFormat) -> Steps[None]:
        ends = {thoughts.end, *(self._triggers if thoughts.calls_end_it else ())}
        end = yield from self._scanner.until(markers(*ends), self._sink.reasoning)
        if end is None:
            return
        self._sink.end_thought()
        if self._calls and end in self._triggers:
            yield from self._call(self._calls, end)
        elif thoughts.answer_start:
            yield from self._answer_start(thoughts)

    def _answer_start(self, thoughts: ReasoningFormat) -> Steps[None]:
        self._scanner.record("")
        yield from self._scanner.space()
        found = yield from self._scanner.one_of(thoughts.answer_start)
        space = self._scanner.recorded()
        if found is None:
            self._sink.content(space)
        else:
            self._answer_end = thoughts.answer_end

    def _bare_call(self, calls: ToolFormat) -> Steps[None]:
        self._scanner.record("")
        yield from self._scanner.space()
        self._sink.content(self._scanner.recorded())
        if (yield from self._scanner.sees(*calls.bare)):
            yield from self._call(calls, "")

    def _call(self, calls: ToolFormat, trigger: str) -> Steps[None]:
        self._scanner.record(trigger)
        try:
            yield from calls.read(self._scanner, self._sink, trigger)
        except NotACall:
            self._sink.content(self._scanner.recorded())
        else:
            self._scanner.recorded()


class AnswerParser:
    """An `OutputParser` that runs an `AnswerReader`."""

    def __init__(
        self, calls: ToolFormat | None, thoughts: ReasoningFormat | None, tools: Sequence[Tool], inside: bool
    ) -> None:
        self._scanner = Scanner()
        self._sink = Sink(tools)
        self._steps = AnswerReader(self._scanner, self._sink, calls, thoughts).read(inside)

    def push(self, text: str) -> Parsed:
        """See `OutputParser`."""
        self._scanner.feed(text)
        next(self._steps, None)
        return self._sink.take()

    def finish(self) -> Parsed:
        """See `OutputParser`."""
        self._scanner.end()
        next(self._steps, None)
        self._sink.end()
        return self._sink.take()


def output_parser(
    tool_format: ToolFormat | None,
    reasoning_format: ReasoningFormat | None,
    tools: Sequence[Tool],
    prompt_text: str,
) -> OutputParser | None:
    """Return the parser of the answer to `prompt_text`, the rendered prompt; None if there is nothing to separate.

    Calls are parsed only with `tools`.
    """
    if reasoning_format and reasoning_format.channels:
        tool_format, reasoning_format = tool_formats()[reasoning_format.channels], None
    calls = tool_format if tool_format and (tools or tool_format.whole) else None
    if calls is None and reasoning_format is None:
        return None
    inside = reasoning_format is not None and reasoning_format.begins_inside_after(prompt_text)
    return AnswerParser(calls, reasoning_format, tools, inside)
