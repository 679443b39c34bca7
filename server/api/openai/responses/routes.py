"""POST /v1/responses, GET and DELETE /v1/responses/{response_id}."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.api.body.route import body_route
from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import ApiError, bad_request
from numaserve.server.api.generation.start import start
from numaserve.server.api.openai.responses.answer import ResponseAnswer
from numaserve.server.api.openai.responses.response_models import DeletedResponse, ModelResponse
from numaserve.server.api.openai.responses.schema import ResponsesRequest
from numaserve.server.api.openai.responses.store import ResponseStore
from numaserve.server.api.openapi import BODY_ERRORS, errors
from numaserve.server.api.response_models import EVENT_STREAM
from numaserve.server.api.streaming import json_response, respond
from numaserve.server.api.turns import Turn


def responses_router(context: ApiContext) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["generation"], route_class=body_route(context.bodies))
    store = ResponseStore(context.limits.max_bytes_stored)

    @router.post("/v1/responses", response_model=ModelResponse, responses={200: EVENT_STREAM, **BODY_ERRORS})
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """A conversation, continued; the shapes of OpenAI's responses, streaming and not."""
        owner = context.owner_of(request)
        conversation = body.conversation_after(_earlier(store, owner, body.previous_response_id))
        answer = ResponseAnswer(context, body, conversation, store, owner)
        generation = await start(context, request, body.asked(conversation), answer.id)
        return await respond(
            request, answer, generation, stream=body.stream is True, ping_seconds=context.sse_ping_seconds
        )

    @router.get("/v1/responses/{response_id}", response_model=ModelResponse, responses=errors(404))
    async def retrieve_response(response_id: str, request: Request) -> Response:
        """A response that was stored, for the key that it was made with."""
        kept = store.get(context.owner_of(request), response_id)
        if kept is None:
            raise _not_found(response_id)
        return json_response(kept.response)

    @router.delete("/v1/responses/{response_id}", response_model=DeletedResponse, responses=errors(404))
    async def delete_response(response_id: str, request: Request) -> Response:
        """Forget a response that was stored."""
        if not store.delete(context.owner_of(request), response_id):
            raise _not_found(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    return router


def _earlier(store: ResponseStore, owner: bytes, response_id: str | None) -> list[Turn]:
    """The conversation that a response ended. Raises `ApiError`."""
    if response_id is None:
        return []
    kept = store.get(owner, response_id)
    if kept is None:
        message = "There is no response of this id, or it is no longer stored; send the conversation as 'input'."
        raise bad_request(message, "previous_response_id", "previous_response_not_found")
    return kept.messages


def _not_found(response_id: str) -> ApiError:
    message = f"There is no response '{response_id[:64]}', or it is no longer stored."
    return ApiError(404, message, param="response_id", code="response_not_found", refusal=None)
