"""POST /v2/embed."""

from collections.abc import Iterator

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer_size import AnswerSize, size_of_texts
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding import check_embeds, embedding, in_form
from numaserve.server.generation.many import Ends, ends_of
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import answer_in_pieces, array_pieces
from numaserve.server.surfaces.cohere.responses import BODY_ERRORS, EmbedByType
from numaserve.server.surfaces.cohere.schema import CohereEmbedRequest


def cohere_router(context: ApiContext) -> APIRouter:
    """Return the route of this module."""
    router = APIRouter(tags=["cohere"], route_class=body_route(context.bodies))

    @router.post("/v2/embed", response_model=EmbedByType, responses=BODY_ERRORS)
    async def cohere_embed(body: CohereEmbedRequest, request: Request) -> Response:
        """Compute embeddings of texts, in Cohere's format; needs a server with `--task embed`."""
        check_model(context, body.model)
        purpose = check_embeds(context, body.output_dimension, *body.forms, param="output_dimension")
        request_id = record_of(request).request_id
        size = AnswerSize.of_vectors(purpose.dense, body.output_dimension, body.forms, beside=size_of_texts(body.given))
        ends = await ends_of(context, request, body.asked(purpose.settings), request_id, size)
        return await answer_in_pieces(_pieces(body, ends, request_id, normalize=purpose.settings.normalize))

    return router


def _pieces(body: CohereEmbedRequest, ends: Ends, request_id: str, *, normalize: bool) -> Iterator[bytes]:
    yield b'{"id":' + msgspec.json.encode(request_id) + b',"embeddings":{'
    for number, form in enumerate(body.forms):
        yield b"," * bool(number) + msgspec.json.encode(form) + b":"
        values = (embedding(each, body.output_dimension, normalize=normalize) for each in ends)
        yield from array_pieces(in_form(each, form) for each in values)
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": ends.prompt_tokens}}
    yield b'},"texts":'
    yield from array_pieces(body.given)
    yield b',"meta":' + msgspec.json.encode(meta) + b"}"
