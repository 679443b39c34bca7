"""POST /generate, POST /abort_request and GET /health_generate, in SGLang's formats."""

import uuid

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.common.patience import patiently
from numaserve.server.generation.answer_size import AnswerSize
from numaserve.server.generation.asked import Asked, Texts
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.many import ends_of
from numaserve.server.generation.purpose import Generates
from numaserve.server.generation.start import start
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.body.route import body_route
from numaserve.server.http.errors import ApiError
from numaserve.server.surfaces.openai.frame import DONE
from numaserve.server.surfaces.openapi import BODY_ERRORS, errors, event_stream
from numaserve.server.surfaces.response_models import Error
from numaserve.server.surfaces.service_models import Status
from numaserve.server.surfaces.sglang.abort_schema import AbortRequest
from numaserve.server.surfaces.sglang.answer import GenerateAnswer
from numaserve.server.surfaces.sglang.generate_schema import SGLangGenerateRequest
from numaserve.server.surfaces.sglang.responses import SGLangAborted, SGLangAnswer, SGLangChunk
from numaserve.server.surfaces.streaming import json_response, respond

PROBE_SECONDS = 20.0  # SGLang's timeout
_PROBE = Asked(Texts([[0]]), Sampling(temperature=0.0, ignore_eos=True), max_tokens=1)
_EMBEDDING_PROBE = Asked(Texts([[0]]), Sampling(), pool="whole")


def generate_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["sglang"], route_class=body_route(context.bodies))
    streamed = event_stream(SGLangChunk, Error, end=DONE)
    answered = SGLangAnswer | list[SGLangAnswer]

    @router.post("/generate", response_model=answered, responses={200: streamed, **BODY_ERRORS})
    async def generate(body: SGLangGenerateRequest, request: Request) -> Response:
        """Continue texts or token ids, in SGLang's format, with or without streaming."""
        rid = body.rid or uuid.uuid4().hex
        generation = await start(context, request, body.asked(), rid)
        answer = GenerateAnswer(context, body, request, rid, generation.prompts)
        return await respond(
            request, answer, generation, stream=body.stream is True, ping_seconds=context.sse_ping_seconds
        )

    @router.post("/abort_request", response_model=SGLangAborted, responses=BODY_ERRORS)
    async def abort_request(body: AbortRequest, request: Request) -> Response:
        """Abort one or all requests that used the same API key; returns the number of aborted requests."""
        ids = None if body.abort_all else body.rid
        return json_response({"aborted": await context.running.abort(context.owner_of(request), ids)})

    @router.get("/health_generate", response_model=Status, responses=errors(429, 503))
    async def health_generate(request: Request) -> Response:
        """Return 200 when the model generates or embeds a token within 20 s; return 503 when it does not, or while
        loading."""
        try:
            async with patiently(PROBE_SECONDS):
                await (_generate_once if isinstance(context.purpose, Generates) else _embed_once)(context, request)
        except TimeoutError:
            message = f"The model has not answered a test request within {PROBE_SECONDS:.0f} s."
            raise ApiError(503, message, kind="server_error", code="generation_stalled", refusal=None) from None
        return json_response({"status": "ok"})

    return router


async def _generate_once(context: ApiContext, request: Request) -> None:
    generation = await start(context, request, _PROBE, _probe_id())
    try:
        async for _ in generation.chunks():
            pass
    finally:
        await generation.aclose()


async def _embed_once(context: ApiContext, request: Request) -> None:
    await ends_of(context, request, _EMBEDDING_PROBE, _probe_id(), AnswerSize())


def _probe_id() -> str:
    return f"probe-{uuid.uuid4().hex}"
