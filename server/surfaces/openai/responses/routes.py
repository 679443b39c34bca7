"""POST /v1/responses and its `input_tokens`, GET and DELETE /v1/responses/{response_id}, and GET its `input_items`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.start import check_model, counted, start
from numaserve.server.http.body.route import body_route
from numaserve.server.http.errors import ApiError
from numaserve.server.http.large_json import JsonAnswer
from numaserve.server.surfaces.openai.responses.answer import ResponseAnswer
from numaserve.server.surfaces.openai.responses.earlier import entries_of_response, page, resolved
from numaserve.server.surfaces.openai.responses.entries import Entry, Ids, conversation_of
from numaserve.server.surfaces.openai.responses.event_models import RESPONSE_EVENTS
from numaserve.server.surfaces.openai.responses.response_models import (
    DeletedResponse,
    InputTokens,
    ItemList,
    ModelResponse,
)
from numaserve.server.surfaces.openai.responses.schema import InputTokensRequest, ResponsesRequest
from numaserve.server.surfaces.openai.responses.store import Kept, ResponseStore, entries_in
from numaserve.server.surfaces.openapi import BODY_ERRORS, errors, event_stream
from numaserve.server.surfaces.streaming import json_response, respond


def responses_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["generation"], route_class=body_route(context.bodies))
    store = ResponseStore(context.limits.max_bytes_stored)

    def stored(request: Request, response_id: str) -> Kept:
        kept = store.get(context.owner_of(request), response_id)
        if kept is None:
            raise _not_found(response_id)
        return kept

    def items_of(body: InputTokensRequest, request: Request, ids: Ids) -> list[Entry]:
        owner, given = context.owner_of(request), list[Entry]()
        if body.previous_response_id is not None:
            given += entries_of_response(store, owner, body.previous_response_id)
        return [*given, *resolved(store, owner, body.input.entries, ids)]

    streamed = event_stream(*RESPONSE_EVENTS)

    @router.post("/v1/responses", response_model=ModelResponse, responses={200: streamed, **BODY_ERRORS})
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Generate the next response of a conversation, in the format of OpenAI's Responses API, with or without
        streaming."""
        ids = Ids()
        given = items_of(body, request, ids)
        answer = ResponseAnswer(context, body, given, ids, partial(store.put, context.owner_of(request)))
        generation = await start(context, request, body.asked(conversation_of(given)), answer.id)
        return await respond(
            request, answer, generation, stream=body.stream is True, ping_seconds=context.sse_ping_seconds
        )

    @router.post("/v1/responses/input_tokens", response_model=InputTokens, responses=BODY_ERRORS)
    async def count_input_tokens(body: InputTokensRequest, request: Request) -> Response:
        """Count the tokens of an input and of the conversation that it continues."""
        check_model(context, body.model)
        given = conversation_of(items_of(body, request, Ids()))
        prompt = await counted(context, request, body.chat(given), body.tool_use())
        return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})

    @router.get("/v1/responses/{response_id}", response_model=ModelResponse, responses=errors(404))
    async def retrieve_response(response_id: str, request: Request) -> Response:
        """Return a stored response to the API key that created it."""
        return JsonAnswer(stored(request, response_id).response)

    @router.get("/v1/responses/{response_id}/input_items", response_model=ItemList, responses=errors(400, 404))
    async def list_input_items(
        response_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """List the input items of a stored response, latest first; `after` starts after the item with that id."""
        entries = entries_in(stored(request, response_id).given)
        return json_response(page(entries if order == "asc" else entries[::-1], limit, after))

    @router.delete("/v1/responses/{response_id}", response_model=DeletedResponse, responses=errors(404))
    async def delete_response(response_id: str, request: Request) -> Response:
        """Delete a stored response."""
        if not store.delete(context.owner_of(request), response_id):
            raise _not_found(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    return router


def _not_found(response_id: str) -> ApiError:
    message = f"No stored response has the id '{response_id[:64]}'."
    return ApiError(404, message, param="response_id", code="response_not_found", refusal=None)
