"""Parsing of a complete answer by the model's response template, at once and in another process.

Incremental parsing was rejected. A region may give way to a later one, be stripped, or turn out to be unreadable.
Chunks that were sent could not be taken back, and a stream would differ from the whole answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs
from numaserve.server.answers.reasoning.format import ReasoningFormat
from numaserve.server.answers.response_template.template import ResponseTemplate
from numaserve.server.answers.response_template.types import Question, ReadAnswer
from numaserve.server.answers.tools.answer import AnswerParser
from numaserve.server.answers.tools.types import Parsed, Tool, ToolCallDelta
from numaserve.server.engine.types import GenerationChunk, NotReady, QueueFull
from numaserve.server.generation.answer.reading import AnswerReader, Chunk


class WholeReader(AnswerReader):
    """Parses one answer to `prompt`. An answer that cannot be parsed in time is text, as the model wrote it."""

    def __init__(
        self,
        template: ResponseTemplate,
        prompt: str,
        tools: Sequence[Tool],
        *,
        thoughts: ReasoningFormat | None,
        separate: bool,
        include: bool,
        parallel: bool,
        hides: bool,
    ) -> None:
        """Use `template` for the answer; see `AnswerReader` for the other parameters.

        `separate`: reasoning is separate from the text, by `thoughts` where the template does not know reasoning.
        `hides`: special tokens are not part of texts.
        """
        self._pieces = _Pieces()
        super().__init__(self._pieces, include=include, parallel=parallel, id_length=None)
        self._template = template
        self._thoughts = thoughts if separate and not template.has_thoughts else None
        known = {tool.name: tool.parameters for tool in tools}
        self._question = Question(prompt, "", known, bool(tools), separate, hides)

    async def prepare(self, last: GenerationChunk) -> None:
        """Parse the whole answer in another process; see `AnswerReader`."""
        question = structs.replace(self._question, text=self._pieces.text + last.text)
        try:
            read = await self._template.read(question)
        except (NotReady, QueueFull):  # the answer has been generated, and paid for
            read = self._template.unread(question)
        self._pieces.parsed = self._parsed(read)

    def read(self, chunk: GenerationChunk) -> Chunk:
        """Return the next piece, which is empty until the end; see `AnswerReader`."""
        self._pieces.tokens.append(len(chunk.token_ids))
        made = super().read(chunk)
        if chunk.finish_reason is not None:
            self.thought_tokens = self._pieces.tokens_up_to(self._pieces.parsed.reasoning)
        return made

    def _parsed(self, read: ReadAnswer) -> Parsed:
        calls = tuple(
            ToolCallDelta(number, each.id, each.name, each.arguments) for number, each in enumerate(read.calls)
        )
        if self._thoughts is None:
            return Parsed(read.content, read.reasoning, calls)
        parser = AnswerParser(None, self._thoughts, (), self._thoughts.begins_inside_after(self._question.prompt))
        first, second = parser.push(read.content), parser.finish()
        return Parsed(first.content + second.content, first.reasoning + second.reasoning, calls)


class _Pieces:
    """An `OutputParser` that returns nothing until the end, and then `parsed`."""

    def __init__(self) -> None:
        self.parsed = Parsed()
        self.tokens: list[int] = []  # of each piece
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def push(self, text: str) -> Parsed:
        self._texts.append(text)
        return Parsed()

    def finish(self) -> Parsed:
        return self.parsed

    def tokens_up_to(self, part: str) -> int:
        """Return the number of tokens up to the end of `part` in the text; 0 if `part` is empty or not in the text."""
        start = self.text.find(part) if part else -1
        if start < 0:
            return 0
        count = characters = 0
        for text, tokens in zip(self._texts, self.tokens, strict=True):
            if characters >= start + len(part):
                break
            count, characters = count + tokens, characters + len(text)
        return count
