"""POST /api/embed, and the older /api/embeddings."""

import asyncio
import time

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding import check_embeds, embedding
from numaserve.server.generation.many import Ends, ends_of
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import pieces_response
from numaserve.server.surfaces.ollama.embed_schema import OllamaEmbeddingsRequest, OllamaEmbedRequest
from numaserve.server.surfaces.ollama.responses import BODY_ERRORS, EmbedAnswer, EmbeddingsAnswer
from numaserve.server.surfaces.streaming import json_response


def ollama_embed_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["ollama"], route_class=body_route(context.bodies, any_content_type=True))

    @router.post("/api/embed", response_model=EmbedAnswer, responses=BODY_ERRORS)
    async def ollama_embed(body: OllamaEmbedRequest, request: Request) -> Response:
        """Compute embeddings of texts, in Ollama's format; needs a server with `--task embed`."""
        began = time.perf_counter_ns()
        check_model(context, body.model)
        check_embeds(context, body.dimensions)
        ends = await ends_of(context, request, body.asked(context.embeddings), record_of(request).request_id)
        # In a thread, as for /v1/embeddings.
        return await asyncio.to_thread(_answer, body, ends, began)

    @router.post("/api/embeddings", response_model=EmbeddingsAnswer, responses=BODY_ERRORS)
    async def ollama_embeddings(body: OllamaEmbeddingsRequest, request: Request) -> Response:
        """Compute the embedding of a text, in Ollama's older format."""
        check_model(context, body.model)
        check_embeds(context, None)
        ends = await ends_of(context, request, body.asked(context.embeddings), record_of(request).request_id)
        values = embedding(ends.chunks[0].embedding, None, normalize=False)
        return json_response({"embedding": values.tolist()})

    return router


def _answer(body: OllamaEmbedRequest, ends: Ends, began: int) -> Response:
    pieces = [b'{"model":' + msgspec.json.encode(body.model) + b',"embeddings":[']
    for index, chunk in enumerate(ends.chunks):
        values = embedding(chunk.embedding, body.dimensions, normalize=True)
        pieces.append(b"," * bool(index) + msgspec.json.encode(values.tolist()))
    counts = {"total_duration": time.perf_counter_ns() - began, "load_duration": 0}
    rest = msgspec.json.encode({**counts, "prompt_eval_count": ends.prompt_tokens})
    return pieces_response([*pieces, b"],", rest[1:]])
