"""POST /v1/embeddings."""

import asyncio
import base64
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.api.access_log import record_of
from numaserve.server.api.body.route import body_route
from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import ApiError, bad_request
from numaserve.server.api.generation.many import Ends, ends_of
from numaserve.server.api.generation.start import check_model
from numaserve.server.api.large_json import pieces_response
from numaserve.server.api.openai.embedding_schema import EmbeddingRequest
from numaserve.server.api.openapi import BODY_ERRORS
from numaserve.server.api.response_models import Embeddings

_LEAST_NORM = 1e-12  # as torch's `normalize` has it, for vectors of zeros


def embeddings_router(context: ApiContext) -> APIRouter:
    """The route of this file."""
    router = APIRouter(tags=["embeddings"], route_class=body_route(context.bodies))

    @router.post("/v1/embeddings", response_model=Embeddings, responses=BODY_ERRORS)
    async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """The embeddings of texts, by a model that is served with `--task embed`; OpenAI's shapes."""
        check_model(context, body.model)
        _check(context, body)
        ends = await ends_of(context, request, body.asked(), record_of(request).request_id)
        # A thread does it: thousands of numbers for each of a thousand texts take seconds.
        return await asyncio.to_thread(_answer, context.model_name, body, ends)

    return router


def _check(context: ApiContext, body: EmbeddingRequest) -> None:
    if not context.embedding_size:
        message = "This model is not served for embeddings; the operator can serve it so with '--task embed'."
        raise ApiError(400, message, param="model", code="task_unsupported")
    if body.dimensions is not None and body.dimensions > context.embedding_size:
        message = f"This model's embeddings have {context.embedding_size} dimensions, not {body.dimensions}."
        raise bad_request(message, "dimensions", "too_many_dimensions")


def _answer(model: str, body: EmbeddingRequest, ends: Ends) -> Response:
    usage = {"prompt_tokens": ends.prompt_tokens, "total_tokens": ends.prompt_tokens}
    pieces = [b'{"object":"list","data":[']
    for index, chunk in enumerate(ends.chunks):
        values = embedding(chunk.embedding, body.dimensions, normalize=body.normalize is not False)
        item = {"object": "embedding", "index": index, "embedding": _encoded(values, body.encoding_format)}
        pieces.append(b"," * bool(index) + msgspec.json.encode(item))
    rest = msgspec.json.encode({"model": model, "usage": usage})
    return pieces_response([*pieces, b"],", rest[1:]])


def embedding(pooled: bytes, dimensions: int | None, *, normalize: bool) -> npt.NDArray[np.float32]:
    """The first `dimensions` of what a sequence was pooled to, fp32, scaled to length 1 with `normalize`.

    In that order: what is left of a vector of length 1 is shorter, and clients take dot products for cosines.
    """
    values = np.frombuffer(pooled, "<f4")[:dimensions]
    if not normalize:
        return values
    wide = values.astype(np.float64)
    return (wide / max(float(np.linalg.norm(wide)), _LEAST_NORM)).astype("<f4")


def _encoded(values: npt.NDArray[np.float32], encoding: str | None) -> str | Sequence[float]:
    if encoding == "base64":
        return base64.b64encode(values.tobytes()).decode()
    numbers: list[float] = values.tolist()
    return numbers
