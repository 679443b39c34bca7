"""POST /v1/rerank and /v1/score, also under the paths of other servers."""

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.classifier import Activation
from numaserve.server.generation.classifier_inputs import Cut
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.surfaces.cohere.responses import BODY_ERRORS as COHERE_ERRORS
from numaserve.server.surfaces.openapi import BODY_ERRORS
from numaserve.server.surfaces.rerank.responses import RankedText, Ranking, ScoreList
from numaserve.server.surfaces.rerank.schema import RerankRequest, ScoreRequest
from numaserve.server.surfaces.rerank.scores import Scores, Wanted, scores
from numaserve.server.surfaces.streaming import json_response
from numaserve.server.surfaces.tei.responses import BODY_ERRORS as TEI_ERRORS

_COHERE_TOKENS = 4096  # of a document, unless a request says otherwise


def rerank_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["rerank"], route_class=body_route(context.bodies))

    @router.post("/v1/rerank", response_model=Ranking | list[RankedText], responses=BODY_ERRORS)
    @router.post("/v2/rerank", response_model=Ranking | list[RankedText], responses=COHERE_ERRORS)
    @router.post("/rerank", response_model=Ranking | list[RankedText], responses=TEI_ERRORS)
    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Rank documents by how well they fit a query; needs a reranker."""
        found = await scores(context, request, _wanted(body, cohere=request.url.path.endswith("/v2/rerank")))
        if body.texts is not None:
            return json_response(_ranked_texts(body, found))
        return json_response(_ranking(context, request, body, found))

    @router.post("/v1/score", response_model=ScoreList, responses=BODY_ERRORS)
    @router.post("/score", response_model=ScoreList, responses=BODY_ERRORS)
    async def score(body: ScoreRequest, request: Request) -> Response:
        """Score how well documents fit queries, usually from 0 to 1; needs a reranker."""
        param = "text_2" if body.text_2 else "documents"
        wanted = Wanted(body.pairs(), param, body.model, body.instruct, priority=body.priority or 0)
        found = await scores(context, request, wanted)
        data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(found.values)]
        frame = {"id": f"score-{record_of(request).request_id}", "object": "list", "created": int(time.time())}
        return json_response({**frame, "model": context.model_name, "data": data, "usage": _usage(found)})

    return router


def _wanted(body: RerankRequest, *, cohere: bool) -> Wanted:
    """Return the pairs of a request. Cohere's servers truncate where a request does not."""
    most = body.max_tokens_per_doc or (_COHERE_TOKENS if cohere else None)
    truncate = cohere if body.truncate is None else body.truncate
    activation: Activation | None = None
    if body.texts is not None:  # that server does not ask the model's files
        activation = "none" if body.raw_scores else "sigmoid"
    return Wanted(
        [(body.query, document) for document in body.ranked],
        "documents" if body.texts is None else "texts",
        body.model,
        body.instruct,
        Cut(most, truncate),
        priority=body.priority or 0,
        activation=activation,
        repeated=body.repeated,
    )


def _best(found: Scores) -> list[int]:
    """Return the indices of the documents, the best first; of equal ones the first."""
    return sorted(range(len(found.values)), key=lambda index: -found.values[index])


def _ranked_texts(body: RerankRequest, found: Scores) -> list[dict[str, object]]:
    shown = body.repeated or None
    return [
        {"index": index, "score": found.values[index]} | ({} if shown is None else {"text": shown[index]})
        for index in _best(found)
    ]


def _ranking(context: ApiContext, request: Request, body: RerankRequest, found: Scores) -> dict[str, object]:
    best = _best(found)[: body.top_n]
    results: list[dict[str, object]] = [{"index": index, "relevance_score": found.values[index]} for index in best]
    if body.repeated:
        for result, index in zip(results, best, strict=True):
            result["document"] = {"text": body.repeated[index]}
    frame = {"id": f"rerank-{record_of(request).request_id}", "model": context.model_name}
    return {**frame, "results": results, "usage": _usage(found)}


def _usage(found: Scores) -> dict[str, int]:
    return {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens}
