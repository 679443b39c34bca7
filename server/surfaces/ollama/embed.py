"""POST /api/embed, and the older /api/embeddings."""

import time
from collections.abc import Iterator

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer_size import AnswerSize
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding import check_embeds, embedding
from numaserve.server.generation.many import Ends, ends_of
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import answer_in_pieces, array_pieces
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
        purpose = check_embeds(context, body.dimensions)
        asked, request_id = body.asked(purpose.settings), record_of(request).request_id
        size = AnswerSize.of_vectors(purpose.dense, body.dimensions, ["float"])
        ends = await ends_of(context, request, asked, request_id, size)
        return await answer_in_pieces(_pieces(body, ends, time.perf_counter_ns() - began))

    @router.post("/api/embeddings", response_model=EmbeddingsAnswer, responses=BODY_ERRORS)
    async def ollama_embeddings(body: OllamaEmbeddingsRequest, request: Request) -> Response:
        """Compute the embedding of a text, in Ollama's older format."""
        check_model(context, body.model)
        purpose = check_embeds(context, None)
        asked, request_id = body.asked(purpose.settings), record_of(request).request_id
        size = AnswerSize.of_vectors(purpose.dense, None, ["float"])
        (found,) = await ends_of(context, request, asked, request_id, size)
        values = embedding(found, None, normalize=False)
        return json_response({"embedding": values.tolist()})

    return router


def _pieces(body: OllamaEmbedRequest, ends: Ends, duration: int) -> Iterator[bytes]:
    yield b'{"model":' + msgspec.json.encode(body.model) + b',"embeddings":'
    yield from array_pieces(embedding(each, body.dimensions, normalize=True).tolist() for each in ends)
    counts = {"total_duration": duration, "load_duration": 0, "prompt_eval_count": ends.prompt_tokens}
    yield b"," + msgspec.json.encode(counts)[1:]
