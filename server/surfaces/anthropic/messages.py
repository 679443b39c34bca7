"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer.reading import Chunk
from numaserve.server.generation.chosen import answering_name
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.generation.start import check_model, counted, start
from numaserve.server.http.body.route import body_route
from numaserve.server.surfaces.anthropic.event_models import MESSAGE_EVENTS
from numaserve.server.surfaces.anthropic.response_models import AnthropicError, AnthropicMessage, TokenCount
from numaserve.server.surfaces.anthropic.schema import CountTokensRequest, MessagesRequest
from numaserve.server.surfaces.anthropic.stream import EVENTS, BlockEvents, Event, message_of, usage_body
from numaserve.server.surfaces.openapi import body_errors, event_stream
from numaserve.server.surfaces.streaming import json_response, respond


def messages_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["generation"], route_class=body_route(context.bodies))
    failures = body_errors(AnthropicError)
    streamed = event_stream(*MESSAGE_EVENTS)

    @router.post("/v1/messages", response_model=AnthropicMessage, responses={200: streamed, **failures})
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        """Generate the next message of a conversation, in Anthropic's format, with or without streaming."""
        answer = _MessageAnswer(context, body)
        generation = await start(context, request, body.asked(), answer.id)
        return await respond(
            request, answer, generation, stream=body.stream is True, ping_seconds=context.sse_ping_seconds
        )

    @router.post("/v1/messages/count_tokens", response_model=TokenCount, responses=failures)
    async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
        """Count the tokens of a conversation, in Anthropic's format."""
        check_model(context, body.model)
        prompt = await counted(context, request, body.chat(), body.tool_use())
        return json_response({"input_tokens": len(prompt.tokens)})

    return router


class _MessageAnswer:
    """Writes the chunks of a generation as a message."""

    framing = EVENTS

    def __init__(self, context: ApiContext, body: MessagesRequest) -> None:
        self.id = f"msg_{uuid.uuid4().hex}"
        self._model = answering_name(context, body.model)
        self._max_tokens = body.max_tokens

    async def complete(self, generation: Generation) -> Response:
        """Return the whole answer at once."""
        async with aclosing(self.stream(generation)) as events:
            return json_response(await message_of(events))

    async def stream(self, generation: Generation) -> AsyncGenerator[Event, None]:
        """Yield the events: the start of the message, its blocks, and the reason for its end."""
        blocks, begun = BlockEvents(), False
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                if not begun:
                    begun = True
                    yield self._start(generation)
                for event in blocks.of(chunk):
                    yield event
                if chunk.finish_reason is not None:
                    for event in blocks.end():
                        yield event
                    yield self._end(generation, chunk)
        yield {"type": "message_stop"}

    def _start(self, generation: Generation) -> Event:
        message: Event = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_body(generation.usage()),
        }
        return {"type": "message_start", "message": message}

    def _end(self, generation: Generation, last: Chunk) -> Event:
        usage = generation.usage()
        stopped_at = last.stop_reason if isinstance(last.stop_reason, str) else None
        if last.finish_reason == "length":
            full = usage.completion_tokens < self._max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        elif last.finish_reason == "tool_calls":
            reason = "tool_use"
        else:
            reason = "end_turn" if stopped_at is None else "stop_sequence"
        delta = {"stop_reason": reason, "stop_sequence": stopped_at}
        return {"type": "message_delta", "delta": delta, "usage": usage_body(usage)}
