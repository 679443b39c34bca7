"""POST /v1/embeddings."""

import asyncio
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding import (
    Form,
    check_embeds,
    check_multivectors,
    embedding,
    in_form,
    token_vectors,
)
from numaserve.server.generation.many import Ends, ends_of
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import pieces_response
from numaserve.server.surfaces.openai.embedding_schema import EmbeddingRequest
from numaserve.server.surfaces.openapi import BODY_ERRORS
from numaserve.server.surfaces.response_models import Embeddings


def embeddings_router(context: ApiContext) -> APIRouter:
    """Return the route of this module."""
    router = APIRouter(tags=["embeddings"], route_class=body_route(context.bodies))

    @router.post("/v1/embeddings", response_model=Embeddings, responses=BODY_ERRORS)
    async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Compute embeddings of texts, in OpenAI's format; needs a server with `--task embed`."""
        check_model(context, body.model)
        if body.return_multivector:
            check_embeds(context, None)
            check_multivectors(context, body.form, "return_multivector")
        else:
            check_embeds(context, body.dimensions, body.form)
        ends = await ends_of(context, request, body.asked(context.embeddings), record_of(request).request_id)
        # In a thread: thousands of numbers for each of a thousand texts take seconds.
        return await asyncio.to_thread(_answer, context, body, ends)

    return router


def _answer(context: ApiContext, body: EmbeddingRequest, ends: Ends) -> Response:
    normalize = body.normalizes(context.embeddings)
    usage = {"prompt_tokens": ends.prompt_tokens, "total_tokens": ends.prompt_tokens}
    pieces = [b'{"object":"list","data":[']
    for index, chunk in enumerate(ends.chunks):
        if body.return_multivector:
            rows = token_vectors(chunk.embedding, normalize=normalize)
            pieces += [b"," * bool(index), *_rows(index, rows, body.form)]
            continue
        values = embedding(chunk.embedding, body.dimensions, normalize=normalize)
        item = {"object": "embedding", "index": index, "embedding": in_form(values, body.form)}
        pieces.append(b"," * bool(index) + msgspec.json.encode(item))
    rest = msgspec.json.encode({"model": context.model_name, "usage": usage})
    return pieces_response([*pieces, b"],", rest[1:]])


def _rows(index: int, rows: npt.NDArray[np.float32], form: Form) -> Iterator[bytes]:
    """Yield the item of a text with many vectors, row by row: a long text has millions of numbers."""
    yield b'{"object":"embedding","index":%d,"embeddings":[' % index
    for number, row in enumerate(rows):
        yield b"," * bool(number) + msgspec.json.encode(in_form(row, form))
    yield b"]}"
