"""POST /embed and /embed_sparse."""

from collections.abc import Iterator

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer_size import AnswerSize
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding import check_embeds, embedding
from numaserve.server.generation.many import Ends, ends_of
from numaserve.server.generation.served_purpose import sparse_vectors
from numaserve.server.generation.sparse import SparseOutput
from numaserve.server.generation.start import check_model
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.http.large_json import answer_in_pieces, array_pieces
from numaserve.server.surfaces.tei.responses import BODY_ERRORS, SparseEntry
from numaserve.server.surfaces.tei.schema import TeiEmbedRequest, TeiEmbedSparseRequest

_ENTRIES = 1024  # encoded at once: a text may have an entry for each token of the vocabulary


def tei_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["text-embeddings-inference"], route_class=body_route(context.bodies))

    @router.post("/embed", response_model=list[list[float]], responses=BODY_ERRORS)
    async def tei_embed(body: TeiEmbedRequest, request: Request) -> Response:
        """Compute embeddings of texts, in the format of text-embeddings-inference; needs `--task embed`."""
        check_model(context, body.model)
        purpose = check_embeds(context, body.dimensions)
        asked, request_id = body.asked(purpose.settings), record_of(request).request_id
        size = AnswerSize.of_vectors(purpose.dense, body.dimensions, ["float"])
        ends = await ends_of(context, request, asked, request_id, size)
        normalize = body.normalize is not False
        values = (embedding(each, body.dimensions, normalize=normalize).tolist() for each in ends)
        return await answer_in_pieces(array_pieces(values))

    @router.post("/embed_sparse", response_model=list[list[SparseEntry]], responses=BODY_ERRORS)
    async def tei_embed_sparse(body: TeiEmbedSparseRequest, request: Request) -> Response:
        """Compute sparse vectors of texts, in the format of text-embeddings-inference; needs a SPLADE model or
        BGE-M3."""
        check_model(context, body.model)
        purpose, output = sparse_vectors(context.purpose)
        asked = body.asked(purpose.settings, "sparse")
        size = AnswerSize.of_weights(None if output.of_tokens else context.limits.vocab_size)
        ends = await ends_of(context, request, asked, record_of(request).request_id, size)
        return await answer_in_pieces(_sparse_pieces(output, ends))

    return router


def _sparse_pieces(output: SparseOutput, ends: Ends) -> Iterator[bytes]:
    yield b"["
    for index, each in enumerate(ends):
        yield b"," * bool(index)
        entries = ({"index": token, "value": weight} for token, weight in output.weights(each))
        yield from array_pieces(entries, together=_ENTRIES)
    yield b"]"
