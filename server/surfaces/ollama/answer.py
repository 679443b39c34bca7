"""Answers of /api/chat and /api/generate: lines of JSON, or one object."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec
from fastapi import Request
from fastapi.responses import Response
from numaserve.server.generation.answer.reading import Chunk
from numaserve.server.generation.answer.whole import WholeAnswer, WholeCall
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.http.access_log import record_of
from numaserve.server.http.errors import ApiError
from numaserve.server.surfaces.event_stream import Framing
from numaserve.server.surfaces.ollama.errors import error_body
from numaserve.server.surfaces.ollama.options import OllamaFields
from numaserve.server.surfaces.openai.logprobs import TokenNames, chat_entries
from numaserve.server.surfaces.streaming import json_response, utc_text

# Places an answer's text, thought and calls in the fields of an endpoint.
Place = Callable[[str, str, Sequence[WholeCall]], dict[str, object]]


def _line(payload: object) -> bytes:
    return msgspec.json.encode(payload) + b"\n"


def _error_line(error: ApiError) -> bytes:
    return _line(error_body(error))


# No keep-alive messages: clients decode every line, even an empty one.
LINES = Framing("application/x-ndjson", _line, _error_line, ping=b"")


def now() -> str:
    """Return the current time as Ollama writes it."""
    return utc_text(time.time())


class OllamaAnswer:
    """Writes the chunks of one generation in Ollama's format. Created when the generation is admitted."""

    framing = LINES

    def __init__(self, context: ApiContext, body: OllamaFields, request: Request, place: Place) -> None:
        self._names = TokenNames(context.tokenizer)
        self._with_logprobs = body.logprobs is True
        self._model = body.model
        self._place = place
        self._began = record_of(request).started
        self._admitted = time.perf_counter()
        self._first: float | None = None

    async def complete(self, generation: Generation) -> Response:
        """Return the whole answer at once."""
        answer = WholeAnswer()
        logprobs: list[msgspec.Raw] = []
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                self._see(chunk)
                answer.add(chunk)
                logprobs += self._entries(chunk)
        frame = self._frame(answer.text, answer.reasoning, answer.calls, logprobs)
        return json_response(frame | self._end(answer.finish_reason, generation))

    async def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """Yield a line for each chunk with content. Each call is complete in its line; the last line has the counts."""
        calls = WholeAnswer()
        told = 0
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                self._see(chunk)
                logprobs = self._entries(chunk)
                calls.add_calls(chunk)
                # The last one may still grow.
                whole = calls.calls[told : None if chunk.finish_reason else -1]
                told += len(whole)
                if chunk.text or chunk.reasoning or whole or logprobs:
                    yield self._frame(chunk.text, chunk.reasoning, whole, logprobs) | {"done": False}
                if chunk.finish_reason is not None:
                    yield self._frame("", "", (), []) | self._end(chunk.finish_reason, generation)

    def _see(self, chunk: Chunk) -> None:
        if self._first is None and chunk.token_ids:
            self._first = time.perf_counter()

    def _entries(self, chunk: Chunk) -> list[msgspec.Raw]:
        return chat_entries(self._names, chunk.logprobs) if self._with_logprobs else []

    def _frame(
        self, text: str, thought: str, calls: Sequence[WholeCall], logprobs: list[msgspec.Raw]
    ) -> dict[str, object]:
        placed = self._place(text, thought, calls)
        frame: dict[str, object] = {"model": self._model, "created_at": now(), **placed}
        return frame | {"logprobs": logprobs} if logprobs else frame

    def _end(self, reason: str | None, generation: Generation) -> dict[str, object]:
        ended, usage = time.perf_counter(), generation.usage()
        first = ended if self._first is None else self._first
        return {
            "done": True,
            "done_reason": "stop" if reason == "tool_calls" else reason,
            "total_duration": _nanoseconds(ended - self._began),
            "load_duration": _nanoseconds(self._admitted - self._began),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first - self._admitted),
            "eval_count": usage.completion_tokens,
            "eval_duration": _nanoseconds(ended - first),
        }


def loaded(model: str, place: Place) -> Response:
    """Return the answer to a request that only loads the model."""
    answer = {"model": model, "created_at": now(), **place("", "", ()), "done": True, "done_reason": "load"}
    return json_response(answer)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
