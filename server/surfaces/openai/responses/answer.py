"""A generation as a response: its events, and the object that ends them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi.responses import Response
from numaserve.server.generation.chosen import answering_name
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation, Usage
from numaserve.server.http.errors import ApiError
from numaserve.server.surfaces.event_stream import Framing, named_event
from numaserve.server.surfaces.openai.logprobs import TokenNames
from numaserve.server.surfaces.openai.responses.entries import Entry, Ids, of_function, said
from numaserve.server.surfaces.openai.responses.logprobs import TextLogprobs
from numaserve.server.surfaces.openai.responses.output import Event, Output
from numaserve.server.surfaces.openai.responses.schema import ResponsesRequest
from numaserve.server.surfaces.openai.responses.store import Kept
from numaserve.server.surfaces.streaming import json_response
from numaserve.server.surfaces.tool_fields import Choice


class ResponseAnswer:
    """Writes the chunks of a generation as a response, and stores the response if the request asks for it."""

    def __init__(
        self,
        context: ApiContext,
        body: ResponsesRequest,
        given: list[Entry],
        ids: Ids,
        keep: Callable[[str, Kept], bool],
    ) -> None:
        """Begin a response to the items `given`; `keep` stores a response with its id and returns whether it was
        stored."""
        self.id = ids.response
        self._given = given
        self._keep = keep if body.store is not False else None
        with_logprobs = body.logprobs >= 0
        logprobs = TextLogprobs(TokenNames(context.tokenizer)) if with_logprobs else None
        self._output = Output(ids, logprobs, body.tools.names if body.tools else None)
        self._frame = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": answering_name(context, body.model),
            **_echoed(body),
        }

    @property
    def framing(self) -> Framing:
        """The format of the events. It refers to this answer, so the answer does not hold it: that would be a cycle."""
        return Framing("text/event-stream", named_event, self._failed, ping=b": ping\n\n")

    async def complete(self, generation: Generation) -> Response:
        """Return the whole answer at once: the response in the last event."""
        last: Event = {}
        async with aclosing(self.stream(generation)) as events:
            async for event in events:
                last = event
        return json_response(last["response"])

    async def stream(self, generation: Generation) -> AsyncGenerator[Event, None]:
        """Yield the events: the beginning of the response, its items, its end."""
        output, begun = self._output, False
        async with aclosing(generation.chunks()) as chunks:
            async for chunk in chunks:
                if not begun:
                    begun = True
                    yield output.event("created", response=self._response("in_progress"))
                    yield output.event("in_progress", response=self._response("in_progress"))
                for event in output.of(chunk):
                    yield event
                if chunk.finish_reason is not None:
                    status = "incomplete" if chunk.finish_reason == "length" else "completed"
                    for event in output.finish(status):
                        yield event
                    yield self._end(status, generation.usage())

    def _end(self, status: str, usage: Usage) -> Event:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response = self._response(status, usage=_usage_body(usage), incomplete_details=cut)
        if self._keep is not None:
            kept = Kept.of(response, self._given, list(map(said, self._output.items)))
            response["store"] = self._keep(self.id, kept)
        return self._output.event(status, response=response)

    def _failed(self, error: ApiError) -> bytes:
        failure = {"code": error.code or error.kind, "message": error.message}
        return named_event(self._output.event("failed", response=self._response("failed", error=failure)))

    def _response(self, status: str, **fields: object) -> dict[str, Any]:
        begun = {"status": status, "error": None, "incomplete_details": None, "usage": None}
        # A copy: the list continues to grow.
        return {**self._frame, **begun, "output": list(self._output.items), **fields}


def _echoed(body: ResponsesRequest) -> dict[str, object]:
    """Return the fields of the request that a response repeats."""
    effort = None if body.reasoning is None else body.reasoning.effort
    summary = None if body.reasoning is None else body.reasoning.summary
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": effort, "summary": summary},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": body.text_format},
        "tool_choice": _choice_body(body),
        "tools": body.tools.listed if body.tools else [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _choice_body(body: ResponsesRequest) -> str | dict[str, object]:
    choice = body.tool_choice or Choice()
    if not choice.names:
        return choice.mode
    known = body.tools.names if body.tools else {}
    split = [known.get(name, (None, name)) for name in choice.names]
    functions = [{"type": "function", **of_function(name, namespace)} for namespace, name in split]
    if choice.one:
        return dict(functions[0])
    return {"type": "allowed_tools", "mode": choice.mode, "tools": functions}


def _usage_body(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
