"""POST /v2/embed."""

import asyncio

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding import check_embeds, embedding, in_form
from numaserve.server.generation.many import Ends, ends_of
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import pieces_response
from numaserve.server.surfaces.cohere.responses import BODY_ERRORS, EmbedByType
from numaserve.server.surfaces.cohere.schema import CohereEmbedRequest


def cohere_router(context: ApiContext) -> APIRouter:
    """Return the route of this module."""
    router = APIRouter(tags=["cohere"], route_class=body_route(context.bodies))

    @router.post("/v2/embed", response_model=EmbedByType, responses=BODY_ERRORS)
    async def cohere_embed(body: CohereEmbedRequest, request: Request) -> Response:
        """Compute embeddings of texts, in Cohere's format; needs a server with `--task embed`."""
        check_model(context, body.model)
        check_embeds(context, body.output_dimension, *body.forms, param="output_dimension")
        request_id = record_of(request).request_id
        ends = await ends_of(context, request, body.asked(context.embeddings), request_id)
        # In a thread, as for /v1/embeddings.
        return await asyncio.to_thread(_answer, context, body, ends, request_id)

    return router


def _answer(context: ApiContext, body: CohereEmbedRequest, ends: Ends, request_id: str) -> Response:
    normalize = context.embeddings.normalize
    values = [embedding(chunk.embedding, body.output_dimension, normalize=normalize) for chunk in ends.chunks]
    pieces = [b'{"id":' + msgspec.json.encode(request_id) + b',"embeddings":{']
    for number, form in enumerate(body.forms):
        pieces.append(b"," * bool(number) + msgspec.json.encode(form) + b":[")
        pieces += [b"," * bool(index) + msgspec.json.encode(in_form(each, form)) for index, each in enumerate(values)]
        pieces.append(b"]")
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": ends.prompt_tokens}}
    rest = msgspec.json.encode({"texts": body.given, "meta": meta})
    return pieces_response([*pieces, b"},", rest[1:]])
