"""Routes for operators, routers and scrapers: configuration, load, /metrics and POST /flush_cache.

Some have two paths: SGLang renamed them, and routers ask for either.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import ApiError, bad_request
from numaserve.server.api.explain import CONFLICT
from numaserve.server.api.openapi import errors
from numaserve.server.api.response_models import Flushed, Loads, ModelInfo, OlderRankLoad, ServerInfo
from numaserve.server.api.streaming import json_response
from numaserve.workers.protocol import RankProfile

_INFO_ERRORS = errors(400, 409, 503)


def info_router(context: ApiContext) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["operation"])

    model = {
        "model_path": context.model_path,
        "tokenizer_path": context.model_path,
        "served_model_name": context.model_name,
    }

    @router.get("/server_info", response_model=ServerInfo, responses=_INFO_ERRORS)
    @router.get("/get_server_info", response_model=ServerInfo, responses=_INFO_ERRORS)
    async def server_info(profile: bool = False, ceilings: bool = False) -> Response:
        """Configuration, workers and live counters; with `profile=1` figures of the steps."""
        info = {
            "version": context.version,
            **model,
            **context.engine.server_info(),
            "served_model_names": context.model_names,
            "sampling_defaults": context.sampling_defaults.model_dump(exclude_none=True),
        }
        if profile:
            info["profile"] = [_figures(rank) for rank in await context.engine.profile(ceilings=ceilings)]
        elif ceilings:
            raise bad_request("'ceilings' is a part of the profile; ask for 'profile=1' too.", "ceilings", CONFLICT)
        return json_response(info)

    @router.get("/model_info", response_model=ModelInfo, responses=errors())
    @router.get("/get_model_info", response_model=ModelInfo, responses=errors())
    async def model_info() -> Response:
        """The model that is served, its context and its vocabulary."""
        limits = context.limits
        return json_response(
            {
                **model,
                "is_generation": True,
                "max_model_len": limits.context_length,
                "vocab_size": limits.vocab_size,
            }
        )

    @router.get("/v1/loads", response_model=Loads, responses=errors())
    async def loads() -> Response:
        """Running and waiting sequences and use of the KV cache, as SGLang's routers ask for it."""
        load = context.engine.load()
        usage = load.tokens_used / load.token_capacity
        figures = {
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_total_reqs": load.running + load.waiting,
            "num_used_tokens": load.tokens_used,
            "max_total_num_tokens": load.token_capacity,
            "token_usage": round(usage, 4),
        }
        # One engine is one data-parallel rank to SGLang's routers.
        aggregate = {
            "total_running_reqs": load.running,
            "total_waiting_reqs": load.waiting,
            "total_reqs": load.running + load.waiting,
            "total_used_tokens": load.tokens_used,
            "avg_token_usage": figures["token_usage"],
        }
        answer = {"timestamp": datetime.now(UTC).isoformat(), "version": context.version, "dp_rank_count": 1}
        return json_response({**answer, "loads": [{"dp_rank": 0, **figures}], "aggregate": aggregate})

    @router.get("/get_load", response_model=list[OlderRankLoad], responses=errors())
    async def get_load() -> Response:
        """Running and waiting sequences and use of the KV cache, in SGLang's older shape."""
        # SGLang's shape. vllm-router asks here too, for one number in an object that vLLM does not give it either.
        load = context.engine.load()
        figures = {
            "num_reqs": load.running + load.waiting,
            "num_waiting_reqs": load.waiting,
            "num_tokens": load.tokens_used,
        }
        return json_response([{"dp_rank": 0, **figures}])

    @router.post("/flush_cache", response_model=Flushed, responses=errors(409))
    async def flush_cache() -> Response:
        """Forget cached prefixes; 409 while requests run."""
        if await context.engine.flush_cache():
            return json_response({"success": True, "message": "Cache flushed."})
        message = "Requests are running; the cache was not flushed. Try again when the server is idle."
        raise ApiError(409, message, code="requests_running", refusal=None)

    @router.get("/metrics", response_class=PlainTextResponse, responses=errors())
    async def metrics() -> Response:
        """The metrics, for Prometheus."""
        body, content_type = context.metrics.render()
        return Response(body, media_type=content_type)

    return router


def _figures(profile: RankProfile) -> dict[str, object]:
    figures = msgspec.structs.asdict(profile)
    del figures["request_id"]  # the engine's, not the client's
    return figures
