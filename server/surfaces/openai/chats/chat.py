"""POST /v1/chat/completions."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.start import start
from numaserve.server.http.body.route import body_route
from numaserve.server.surfaces.openai.chats.chat_answer import ChatAnswer
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.surfaces.openai.chunk_models import ChatCompletionChunk
from numaserve.server.surfaces.openai.frame import DONE
from numaserve.server.surfaces.openapi import BODY_ERRORS, event_stream
from numaserve.server.surfaces.response_models import ChatCompletion, Error
from numaserve.server.surfaces.streaming import respond


def chat_router(context: ApiContext) -> APIRouter:
    """Return the route of this module."""
    router = APIRouter(tags=["generation"], route_class=body_route(context.bodies))
    streamed = event_stream(ChatCompletionChunk, Error, end=DONE)

    @router.post("/v1/chat/completions", response_model=ChatCompletion, responses={200: streamed, **BODY_ERRORS})
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Generate the next message of a conversation, in OpenAI's format, with or without streaming."""
        answer = ChatAnswer(context, body)
        generation = await start(context, request, body.asked(), answer.id)
        return await respond(
            request, answer, generation, stream=body.stream is True, ping_seconds=context.sse_ping_seconds
        )

    return router
