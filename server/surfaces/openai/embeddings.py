"""POST /v1/embeddings."""

from collections.abc import Iterator

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer_size import AnswerSize
from numaserve.server.generation.chosen import answering_name
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding import (
    check_embeds,
    check_multivectors,
    embedding,
    in_form,
    token_vectors,
)
from numaserve.server.generation.many import Ends, ends_of
from numaserve.server.generation.purpose import Embeds
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import answer_in_pieces, array_pieces
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
            purpose = check_embeds(context, None)
            check_multivectors(purpose, body.form, "return_multivector")
        else:
            purpose = check_embeds(context, body.dimensions, body.form)
        asked, request_id = body.asked(purpose.settings), record_of(request).request_id
        ends = await ends_of(context, request, asked, request_id, _size(purpose, body))
        return await answer_in_pieces(_pieces(answering_name(context, body.model), purpose, body, ends))

    return router


def _size(purpose: Embeds, body: EmbeddingRequest) -> AnswerSize:
    if body.return_multivector:
        return AnswerSize.of_token_vectors(purpose.tokens, body.form)
    return AnswerSize.of_vectors(purpose.dense, body.dimensions, [body.form])


def _pieces(model: str, purpose: Embeds, body: EmbeddingRequest, ends: Ends) -> Iterator[bytes]:
    normalize = body.normalizes(purpose.settings)
    yield b'{"object":"list","data":['
    for index, each in enumerate(ends):
        yield b"," * bool(index)
        if body.return_multivector:
            # Row by row: a long text has millions of numbers.
            yield b'{"object":"embedding","index":%d,"embeddings":' % index
            yield from array_pieces(in_form(row, body.form) for row in token_vectors(each, normalize=normalize))
            yield b"}"
        else:
            values = embedding(each, body.dimensions, normalize=normalize)
            item = {"object": "embedding", "index": index, "embedding": in_form(values, body.form)}
            yield msgspec.json.encode(item)
    usage = {"prompt_tokens": ends.prompt_tokens, "total_tokens": ends.prompt_tokens}
    yield b"]," + msgspec.json.encode({"model": model, "usage": usage})[1:]
