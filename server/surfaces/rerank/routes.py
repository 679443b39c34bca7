"""POST /v1/rerank and /v1/score, also under the paths of other servers."""

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.route import body_route
from numaserve.server.surfaces.openapi import BODY_ERRORS
from numaserve.server.surfaces.rerank.responses import Ranking, ScoreList
from numaserve.server.surfaces.rerank.schema import RerankRequest, ScoreRequest
from numaserve.server.surfaces.rerank.scores import Scores, Wanted, scores
from numaserve.server.surfaces.streaming import json_response


def rerank_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["rerank"], route_class=body_route(context.bodies))

    @router.post("/v1/rerank", response_model=Ranking, responses=BODY_ERRORS)
    @router.post("/v2/rerank", response_model=Ranking, responses=BODY_ERRORS)
    @router.post("/rerank", response_model=Ranking, responses=BODY_ERRORS)
    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Rank documents by how well they fit a query; needs a server with `--task score`."""
        pairs = [(body.query, document) for document in body.documents]
        wanted = Wanted(
            pairs, "documents", body.model, body.instruct, body.max_tokens_per_doc, priority=body.priority or 0
        )
        return json_response(_ranking(context, request, body, await scores(context, request, wanted)))

    @router.post("/v1/score", response_model=ScoreList, responses=BODY_ERRORS)
    @router.post("/score", response_model=ScoreList, responses=BODY_ERRORS)
    async def score(body: ScoreRequest, request: Request) -> Response:
        """Score how well documents fit queries, from 0 to 1; needs a server with `--task score`."""
        param = "text_2" if body.text_2 else "documents"
        wanted = Wanted(body.pairs(), param, body.model, body.instruct, priority=body.priority or 0)
        found = await scores(context, request, wanted)
        data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(found.values)]
        frame = {"id": f"score-{record_of(request).request_id}", "object": "list", "created": int(time.time())}
        return json_response({**frame, "model": context.model_name, "data": data, "usage": _usage(found)})

    return router


def _ranking(context: ApiContext, request: Request, body: RerankRequest, found: Scores) -> dict[str, object]:
    best = sorted(range(len(found.values)), key=lambda index: -found.values[index])[: body.top_n]
    results: list[dict[str, object]] = [{"index": index, "relevance_score": found.values[index]} for index in best]
    if body.return_documents is not False:
        for result, index in zip(results, best, strict=True):
            result["document"] = {"text": body.documents[index]}
    frame = {"id": f"rerank-{record_of(request).request_id}", "model": context.model_name}
    return {**frame, "results": results, "usage": _usage(found)}


def _usage(found: Scores) -> dict[str, int]:
    return {"prompt_tokens": found.prompt_tokens, "total_tokens": found.prompt_tokens}
