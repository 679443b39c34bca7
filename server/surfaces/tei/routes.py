"""POST /embed and /embed_sparse."""

import asyncio

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding import check_embeds, embedding, sparse_output
from numaserve.server.generation.many import Ends, ends_of
from numaserve.server.generation.sparse import SparseOutput
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import pieces_response
from numaserve.server.surfaces.tei.responses import BODY_ERRORS, SparseEntry
from numaserve.server.surfaces.tei.schema import TeiEmbedRequest, TeiEmbedSparseRequest


def tei_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["text-embeddings-inference"], route_class=body_route(context.bodies))

    @router.post("/embed", response_model=list[list[float]], responses=BODY_ERRORS)
    async def tei_embed(body: TeiEmbedRequest, request: Request) -> Response:
        """Compute embeddings of texts, in the format of text-embeddings-inference; needs `--task embed`."""
        check_model(context, body.model)
        check_embeds(context, body.dimensions)
        ends = await ends_of(context, request, body.asked(context.embeddings), record_of(request).request_id)
        # In a thread, as for /v1/embeddings.
        return await asyncio.to_thread(_answer, body, ends)

    @router.post("/embed_sparse", response_model=list[list[SparseEntry]], responses=BODY_ERRORS)
    async def tei_embed_sparse(body: TeiEmbedSparseRequest, request: Request) -> Response:
        """Compute sparse vectors of texts, in the format of text-embeddings-inference; needs a SPLADE model or
        BGE-M3."""
        check_model(context, body.model)
        output = sparse_output(context)
        asked = body.asked(context.embeddings, "sparse")
        ends = await ends_of(context, request, asked, record_of(request).request_id)
        return await asyncio.to_thread(_sparse_answer, output, ends)

    return router


def _answer(body: TeiEmbedRequest, ends: Ends) -> Response:
    pieces = [b"["]
    for index, chunk in enumerate(ends.chunks):
        values = embedding(chunk.embedding, body.dimensions, normalize=body.normalize is not False)
        pieces.append(b"," * bool(index) + msgspec.json.encode(values.tolist()))
    return pieces_response([*pieces, b"]"])


def _sparse_answer(output: SparseOutput, ends: Ends) -> Response:
    pieces = [b"["]
    for index, chunk in enumerate(ends.chunks):
        entries = [{"index": token, "value": weight} for token, weight in output.weights(chunk.embedding)]
        pieces.append(b"," * bool(index) + msgspec.json.encode(entries))
    return pieces_response([*pieces, b"]"])
