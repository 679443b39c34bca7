"""POST /api/chat and POST /api/generate."""

import uuid
from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer.whole import WholeCall
from numaserve.server.generation.asked import Asked
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.start import check_model, check_ready, start
from numaserve.server.http.body.route import body_route
from numaserve.server.http.fields.json_data import raw_object
from numaserve.server.surfaces.ollama.answer import OllamaAnswer, Place, loaded
from numaserve.server.surfaces.ollama.chat_schema import OllamaChatRequest
from numaserve.server.surfaces.ollama.generate_schema import OllamaGenerateRequest
from numaserve.server.surfaces.ollama.options import OllamaFields
from numaserve.server.surfaces.ollama.responses import (
    BODY_ERRORS,
    ChatAnswer,
    ChatLine,
    GenerateAnswer,
    GenerateLine,
    OllamaError,
)
from numaserve.server.surfaces.openapi import json_lines
from numaserve.server.surfaces.streaming import respond

_NO_OBJECT = "arguments"  # the field that holds invalid arguments as text, which no function accepts


def ollama_generation_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["ollama"], route_class=body_route(context.bodies, any_content_type=True))
    message_lines = json_lines(ChatLine, ChatAnswer, OllamaError)
    response_lines = json_lines(GenerateLine, GenerateAnswer, OllamaError)

    @router.post("/api/chat", response_model=ChatAnswer, responses={200: message_lines, **BODY_ERRORS})
    async def ollama_chat(body: OllamaChatRequest, request: Request) -> Response:
        """Generate the next message of a conversation, in Ollama's format; streams lines of JSON unless `stream` is
        false."""
        return await _answer(context, request, body, body.asked(), _as_message)

    @router.post("/api/generate", response_model=GenerateAnswer, responses={200: response_lines, **BODY_ERRORS})
    async def ollama_generate(body: OllamaGenerateRequest, request: Request) -> Response:
        """Generate a response to a prompt, in Ollama's format; streams lines of JSON unless `stream` is false."""
        return await _answer(context, request, body, body.asked(), _as_response)

    return router


def _as_message(text: str, thought: str, calls: Sequence[WholeCall]) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": raw_object(call.arguments, _NO_OBJECT)}}
            for call in calls
        ]
    return {"message": message | {"thinking": thought} if thought else message}


def _as_response(text: str, thought: str, _calls: Sequence[WholeCall]) -> dict[str, object]:
    return {"response": text, "thinking": thought} if thought else {"response": text}


async def _answer(
    context: ApiContext, request: Request, body: OllamaFields, asked: Asked | None, place: Place
) -> Response:
    if asked is None:
        check_model(context, body.model)
        check_ready(context)
        return loaded(body.model, place)
    generation = await start(context, request, asked, f"ollama-{uuid.uuid4().hex}")
    answer = OllamaAnswer(context, body, request, place)
    return await respond(request, answer, generation, stream=body.stream is not False, ping_seconds=0)
