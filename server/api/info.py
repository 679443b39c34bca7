"""GET /server_info, /get_model_info, /metrics and POST /flush_cache: for operators, routers and scrapers."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from fastapi.responses import Response
from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import ApiError, bad_request
from numaserve.server.api.streaming import json_response
from numaserve.workers.protocol import RankProfile


def info_router(context: ApiContext) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["operation"])

    @router.get("/server_info")
    async def server_info(profile: bool = False, ceilings: bool = False) -> Response:
        info = {
            "version": context.version,
            **context.engine.server_info(),
            "served_model_names": context.model_names,
        }
        if profile:
            info["profile"] = [_figures(rank) for rank in await context.engine.profile(ceilings=ceilings)]
        elif ceilings:
            raise bad_request("'ceilings' is a part of the profile; ask for 'profile=1' too.", "ceilings")
        return json_response(info)

    @router.get("/get_model_info")
    async def get_model_info() -> Response:
        return json_response(
            {
                "model_path": context.model_path,
                "tokenizer_path": context.model_path,
                "served_model_name": context.model_name,
                "is_generation": True,
                "max_model_len": context.limits.context_length,
                "vocab_size": context.limits.vocab_size,
            }
        )

    @router.post("/flush_cache")
    async def flush_cache() -> Response:
        if await context.engine.flush_cache():
            return json_response({"success": True, "message": "Cache flushed."})
        message = "Requests are running; the cache was not flushed. Try again when the server is idle."
        raise ApiError(409, message, code="requests_running", refusal=None)

    @router.get("/metrics")
    async def metrics() -> Response:
        body, content_type = context.metrics.render()
        return Response(body, media_type=content_type)

    return router


def _figures(profile: RankProfile) -> dict[str, object]:
    figures = msgspec.structs.asdict(profile)
    del figures["request_id"]  # the engine's, not the client's
    return figures
