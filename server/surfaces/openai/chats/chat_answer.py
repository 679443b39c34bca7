"""Answers of POST /v1/chat/completions: messages, and the deltas of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from fastapi.responses import Response
from numaserve.server.answers.tools.types import ToolCallDelta
from numaserve.server.generation.answer.reading import Chunk
from numaserve.server.generation.answer.whole import WholeAnswer
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.surfaces.openai.frame import EVENTS, Frame, StreamUsage, usage_body
from numaserve.server.surfaces.openai.logprobs import TokenNames, chat_entries, only_likeliest, prompt_entries
from numaserve.server.surfaces.openai.token_ids import TokenIds
from numaserve.server.surfaces.streaming import json_response
from numaserve.workers.interface.protocol import TokenLogprobs


class ChatAnswer:
    """Writes the chunks of a generation in the format of chat completions."""

    framing = EVENTS

    def __init__(self, context: ApiContext, body: ChatRequest) -> None:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._frame = Frame.new(context, body, "chatcmpl", kind)
        self._names = TokenNames(context.tokenizer, as_ids=body.return_tokens_as_token_ids is True)
        self._choices = body.n or 1
        self._with_logprobs = body.logprobs is True
        self._older = bool(body.functions)  # calls in OpenAI's older format
        self._echoed = body.echoed
        self._ids = TokenIds(wanted=body.return_token_ids is True)
        self._body = body

    @property
    def id(self) -> str:
        """The answer's id."""
        return self._frame.id

    async def complete(self, generation: Generation) -> Response:
        """Return the whole answer at once."""
        answers = [WholeAnswer() for _ in range(self._choices)]
        logprobs: list[list[msgspec.Raw]] = [[] for _ in range(self._choices)]
        scored: list[msgspec.Raw] | None = None
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                answers[chunk.index].add(chunk)
                self._ids.add(chunk.index, chunk.token_ids)
                if scored is None and self._body.prompt_logprobs is not None:
                    # In a thread: thousands of tokens, each with alternatives, take a second.
                    entries = partial(prompt_entries, self._names, chunk.prompt_logprobs, self._body.prompt_logprobs)
                    scored = await asyncio.to_thread(entries)
                # Chunk by chunk: a long answer's entries at once would block the event loop for a second at its end.
                logprobs[chunk.index] += self._entries(chunk.logprobs)
        choices: list[dict[str, object]] = [
            {
                "index": index,
                "message": self._message(answer),
                "logprobs": self._logprobs(logprobs[index]),
                "finish_reason": self._reason(answer.finish_reason),
                **self._ids.take(index),
            }
            for index, answer in enumerate(answers)
        ]
        of_prompt = self._ids.of_prompt(generation.prompts[0].tokens)
        if scored is not None:
            of_prompt["prompt_logprobs"] = scored
        return json_response(self._frame.wrap(choices, usage=usage_body(generation.usage()), **of_prompt))

    async def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """Yield the chunks: per choice one with the role, then its deltas, then one with the reason; finally the
        usage."""
        started: set[int] = set()
        usage = StreamUsage(self._body, generation)
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                index = chunk.index
                self._ids.add(index, chunk.token_ids)
                if index not in started:
                    started.add(index)
                    first = self._choice(index, {"role": "assistant", "content": "", "refusal": None})
                    of_prompt = self._ids.of_prompt(generation.prompts[0].tokens)
                    yield self._frame.wrap([first], **usage.of_chunk(index, begins=True), **of_prompt)
                    if self._echoed:
                        echo = self._choice(index, {"content": self._echoed})
                        yield self._frame.wrap([echo], **usage.of_chunk(index, begins=True))
                logprobs = self._logprobs(self._entries(chunk.logprobs)) if chunk.logprobs else None
                for delta in self._deltas(chunk, with_logprobs=logprobs is not None):
                    choice = self._choice(index, delta, logprobs) | self._ids.take(index)
                    yield self._frame.wrap([choice], **usage.of_chunk(index))
                    logprobs = None
                if chunk.finish_reason is not None:
                    last = self._choice(index, {}, finish_reason=self._reason(chunk.finish_reason))
                    yield self._frame.wrap([last | self._ids.take(index)], **usage.of_chunk(index))
        if usage.wanted:
            yield self._frame.wrap([], usage=usage_body(generation.usage()))

    def _deltas(self, chunk: Chunk, *, with_logprobs: bool) -> Iterator[dict[str, object]]:
        if chunk.reasoning:
            yield {"reasoning_content": chunk.reasoning, "reasoning": chunk.reasoning}
        if chunk.text or (with_logprobs and not chunk.reasoning and not chunk.tool_calls):
            yield {"content": chunk.text}
        if chunk.tool_calls and self._older:
            for delta in chunk.tool_calls:
                yield {"function_call": _function(delta)}
        elif chunk.tool_calls:
            yield {"tool_calls": [_call_delta(delta) for delta in chunk.tool_calls]}

    def _message(self, answer: WholeAnswer) -> dict[str, object]:
        text, thought = self._echoed + answer.text, answer.reasoning
        message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
        if thought:
            message |= {"reasoning_content": thought, "reasoning": thought}
        if not answer.calls:
            return message
        functions = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
        message["content"] = text or None
        if self._older:
            return message | {"function_call": functions[0]}
        ids = [call.id for call in answer.calls]
        calls = [
            {"id": id_, "type": "function", "function": function} for id_, function in zip(ids, functions, strict=True)
        ]
        return message | {"tool_calls": calls}

    def _reason(self, reason: str | None) -> str | None:
        return "function_call" if reason == "tool_calls" and self._older else reason

    def _entries(self, tokens: Sequence[TokenLogprobs]) -> list[msgspec.Raw]:
        if not self._with_logprobs:
            return []
        return chat_entries(self._names, only_likeliest(tokens, self._body.top_logprobs or 0))

    def _logprobs(self, entries: list[msgspec.Raw]) -> dict[str, object] | None:
        return {"content": entries, "refusal": None} if self._with_logprobs else None

    @staticmethod
    def _choice(
        index: int,
        delta: dict[str, object],
        logprobs: dict[str, object] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, object]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _function(delta: ToolCallDelta) -> dict[str, object]:
    function: dict[str, object] = {"arguments": delta.arguments}
    return function if delta.name is None else {"name": delta.name, **function}


def _call_delta(delta: ToolCallDelta) -> dict[str, object]:
    call: dict[str, object] = {"index": delta.call, "function": _function(delta)}
    return call if delta.name is None else {**call, "id": delta.id, "type": "function"}
