"""Incremental parsing of an answer: its text, its reasoning and its tool calls."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Literal

from numaserve.server.answers.tools.types import OutputParser, Parsed, ToolCallDelta
from numaserve.server.common.finish_reasons import EndReason
from numaserve.server.engine.types import GenerationChunk
from numaserve.workers.interface.protocol import TokenLogprobs

AnswerEnd = Literal[EndReason, "tool_calls"]


@dataclass(slots=True)
class Chunk:
    """A piece of answer `index`: the output of one step, in the form that a surface writes."""

    index: int
    text: str
    of_engine: GenerationChunk
    finish_reason: AnswerEnd | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()  # the first piece of each call has an id

    @classmethod
    def unread(cls, chunk: GenerationChunk) -> Chunk:
        """Return the chunk of an answer that is all text."""
        return cls(chunk.index, chunk.text, chunk, chunk.finish_reason)

    @property
    def token_ids(self) -> list[int]:
        """The tokens of the step."""
        return self.of_engine.token_ids

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """Log-probabilities of the tokens of the step."""
        return self.of_engine.logprobs

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs]:
        """The log-probabilities of the prompt's tokens after the first, on the first chunk."""
        return self.of_engine.prompt_logprobs

    @property
    def stop_reason(self) -> int | str | None:
        """The token or string that ended the answer."""
        return self.of_engine.stop_reason


class AnswerReader:
    """Parses one answer with the parser of the model's format. `thought_tokens` counts its reasoning tokens so far."""

    def __init__(self, parser: OutputParser, *, include: bool, parallel: bool, id_length: int | None) -> None:
        """Use `parser`. `include`: the reasoning is part of the answer; `parallel`: so are calls after the first."""
        self.thought_tokens = 0
        self._parser = parser
        self._include = include
        self._parallel = parallel
        self._id_length = id_length
        self._thought = self._has_begun = self._has_called = False

    async def prepare(self, last: GenerationChunk) -> None:
        """Do slow work before `last`, the end of the answer, is read."""

    def read(self, chunk: GenerationChunk) -> Chunk:
        """Return the next piece."""
        parsed = self._parser.push(chunk.text)
        if chunk.finish_reason is not None:
            parsed = _joined(parsed, self._parser.finish())
        calls = tuple(map(self._named, filter(self._is_wanted, parsed.calls)))
        self._has_called |= bool(calls)
        self._thought |= bool(parsed.reasoning)
        self._has_begun |= bool(parsed.content or parsed.calls)
        if not self._has_begun and self._thought:
            self.thought_tokens += len(chunk.token_ids)
        self._has_begun |= parsed.ends_thought  # further text may be held back until it is a call
        ends_in_call = self._has_called and chunk.finish_reason == "stop"
        reason: AnswerEnd | None = "tool_calls" if ends_in_call else chunk.finish_reason
        reasoning = parsed.reasoning if self._include else ""
        return Chunk(chunk.index, parsed.content, chunk, reason, reasoning, calls)

    def _is_wanted(self, delta: ToolCallDelta) -> bool:
        return self._parallel or delta.call == 0

    def _named(self, delta: ToolCallDelta) -> ToolCallDelta:
        if delta.name is None or delta.id is not None:
            return delta
        return replace(delta, id=call_id(self._id_length))


def call_id(length: int | None) -> str:
    """Return a new id for a call, with `length` letters and digits where the model's template requires that."""
    return f"call_{secrets.token_hex(12)}" if length is None else secrets.token_hex(length)[:length]


def _joined(first: Parsed, second: Parsed) -> Parsed:
    return Parsed(
        first.content + second.content,
        first.reasoning + second.reasoning,
        _merged((*first.calls, *second.calls)),
        first.ends_thought or second.ends_thought,
    )


def _merged(calls: tuple[ToolCallDelta, ...]) -> tuple[ToolCallDelta, ...]:
    """Join neighbouring pieces of the same call."""
    merged: list[ToolCallDelta] = []
    for delta in calls:
        if merged and merged[-1].call == delta.call:
            merged[-1] = replace(merged[-1], arguments=merged[-1].arguments + delta.arguments)
        else:
            merged.append(delta)
    return tuple(merged)
