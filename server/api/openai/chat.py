"""POST /v1/chat/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.api.body.route import body_route
from numaserve.server.api.context import ApiContext
from numaserve.server.api.generation.generation import Generation
from numaserve.server.api.generation.start import start
from numaserve.server.api.openai.chat_schema import ChatRequest
from numaserve.server.api.openai.frame import EVENTS, Frame, StreamUsage, usage_body
from numaserve.server.api.openai.logprobs import TokenNames, chat_entries
from numaserve.server.api.openapi import BODY_ERRORS
from numaserve.server.api.response_models import EVENT_STREAM, ChatCompletion
from numaserve.server.api.streaming import json_response, respond
from numaserve.workers.protocol import TokenLogprobs


def chat_router(context: ApiContext) -> APIRouter:
    """The route of this file."""
    router = APIRouter(tags=["generation"], route_class=body_route(context.bodies))

    @router.post("/v1/chat/completions", response_model=ChatCompletion, responses={200: EVENT_STREAM, **BODY_ERRORS})
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """A conversation, continued; OpenAI's shapes, streaming and not."""
        answer = _ChatAnswer(context, body)
        generation = await start(context, request, body.asked(), answer.id)
        return await respond(
            request, answer, generation, stream=body.stream is True, ping_seconds=context.sse_ping_seconds
        )

    return router


class _ChatAnswer:
    """Writes the chunks of a generation in the shape of chat."""

    framing = EVENTS

    def __init__(self, context: ApiContext, body: ChatRequest) -> None:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._frame = Frame.new(context, "chatcmpl", kind)
        self._names = TokenNames(context.tokenizer)
        self._choices = body.n or 1
        self._with_logprobs = body.logprobs is True
        self._body = body

    @property
    def id(self) -> str:
        """The answer's id."""
        return self._frame.id

    async def complete(self, generation: Generation) -> Response:
        """The whole answer at once."""
        texts: list[list[str]] = [[] for _ in range(self._choices)]
        logprobs: list[list[msgspec.Raw]] = [[] for _ in range(self._choices)]
        reasons: list[str | None] = [None] * self._choices
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                index = chunk.index
                texts[index].append(chunk.text)
                # Chunk by chunk: those of a long answer together would hold the event loop for a second at its end.
                logprobs[index] += self._entries(chunk.logprobs)
                reasons[index] = chunk.finish_reason or reasons[index]
        choices: list[dict[str, object]] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(texts[index]), "refusal": None},
                "logprobs": self._logprobs(logprobs[index]),
                "finish_reason": reasons[index],
            }
            for index in range(self._choices)
        ]
        return json_response(self._frame.wrap(choices, usage=usage_body(generation.usage())))

    async def stream(self, generation: Generation) -> AsyncGenerator[object, None]:
        """The chunks: per choice one with the role, then its text, then one with the reason; at last usage."""
        started: set[int] = set()
        usage = StreamUsage(self._body, generation)
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                index = chunk.index
                if index not in started:
                    started.add(index)
                    first = self._choice(index, {"role": "assistant", "content": "", "refusal": None})
                    yield self._frame.wrap([first], **usage.of_chunk(index, begins=True))
                if chunk.text or (self._with_logprobs and chunk.logprobs):
                    logprobs = self._logprobs(self._entries(chunk.logprobs))
                    content = self._choice(index, {"content": chunk.text}, logprobs)
                    yield self._frame.wrap([content], **usage.of_chunk(index))
                if chunk.finish_reason is not None:
                    last = self._choice(index, {}, finish_reason=chunk.finish_reason)
                    yield self._frame.wrap([last], **usage.of_chunk(index))
        if usage.wanted:
            yield self._frame.wrap([], usage=usage_body(generation.usage()))

    def _entries(self, tokens: list[TokenLogprobs]) -> list[msgspec.Raw]:
        return chat_entries(self._names, tokens) if self._with_logprobs else []

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
