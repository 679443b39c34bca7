"""Routes for operators, routers and scrapers: configuration, load, /metrics and POST /flush_cache.

Some have two paths: SGLang renamed them, and routers use either.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from numaserve.server.common.cpu_times import cpu_times
from numaserve.server.engine.types import Load, NotReady
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.purpose import Generates
from numaserve.server.generation.vision import Vision
from numaserve.server.http.errors import ApiError, bad_request
from numaserve.server.http.explain import CONFLICT
from numaserve.server.images.geometry import most_tiles
from numaserve.server.surfaces.openapi import errors
from numaserve.server.surfaces.service_models import Flushed, Loads, Machine, ModelInfo, OlderRankLoad, ServerInfo
from numaserve.server.surfaces.streaming import json_response
from numaserve.workers.interface.protocol import RankProfile

_INFO_ERRORS = errors(400, 409, 503)
_COSTS_WITHIN_S = 0.5


def info_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["operation"])

    @router.get("/server_info", response_model=ServerInfo, responses=_INFO_ERRORS)
    @router.get("/get_server_info", response_model=ServerInfo, responses=_INFO_ERRORS)
    async def server_info(profile: bool = False, ceilings: bool = False) -> Response:
        """Return the configuration, the workers and live counters; with `profile=1` also the cost of steps."""
        if ceilings and not profile:
            raise bad_request(
                "'ceilings' has an effect only with 'profile=1'. Set 'profile=1' too.", "ceilings", CONFLICT
            )
        if not profile:
            return json_response(_server_info(context))
        ranks = await context.engine.profile(ceilings=ceilings)
        info = _server_info(context)
        # Hundreds of small files on a large host.
        times = await asyncio.to_thread(_cpu_times, info["workers"])
        return json_response(info | {"profile": [_figures(rank) | times.get(rank.rank, {}) for rank in ranks]})

    @router.get("/machine", response_model=Machine, responses=errors())
    async def machine() -> Response:
        """Return the current queue, KV pages, prefix tree and workers, and the cost of steps; the page /ui shows this
        data."""
        now, costs = context.engine.overview(), await _costs(context)
        return json_response({"version": context.version, "model": context.model_name, "now": now, "costs": costs})

    @router.get("/model_info", response_model=ModelInfo, responses=errors())
    @router.get("/get_model_info", response_model=ModelInfo, responses=errors())
    async def model_info() -> Response:
        """Return the served model, its context length and the number of its token ids."""
        purpose = {"is_generation": isinstance(context.purpose, Generates), "task": context.purpose.task}
        sizes = {"max_model_len": context.limits.context_length, "vocab_size": context.vocab_size}
        return json_response({**_model_names(context), **purpose, **sizes})

    @router.get("/v1/loads", response_model=Loads, responses=errors())
    async def loads() -> Response:
        """Return the running and waiting sequences and the use of the KV cache, in the format of SGLang's routers."""
        answer = {"timestamp": datetime.now(UTC).isoformat(), "version": context.version}
        return json_response(answer | _loads(context.engine.load()))

    @router.get("/get_load", response_model=list[OlderRankLoad], responses=errors())
    async def get_load() -> Response:
        """Return the running and waiting sequences and the use of the KV cache, in SGLang's older format."""
        return json_response([_older_rank_load(context.engine.load())])

    @router.post("/flush_cache", response_model=Flushed, responses=errors(409))
    async def flush_cache() -> Response:
        """Clear the prefix cache in memory and on disk; returns 409 while requests are running."""
        return await flush(context)

    @router.get("/metrics", response_class=PlainTextResponse, responses=errors())
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        body, content_type = context.metrics.render()
        return Response(body, media_type=content_type)

    return router


async def flush(context: ApiContext) -> Response:
    """Clear the prefix cache. Raises `ApiError` 409 while requests run."""
    if await context.engine.flush_cache():
        return json_response({"success": True, "message": "Cache flushed."})
    message = "Requests are running; the cache was not flushed. Try again when the server is idle."
    raise ApiError(409, message, code="requests_running", refusal=None)


async def _costs(context: ApiContext) -> list[dict[str, object]]:
    """Return each rank's figures; none if a step delays them, or if there are no workers.

    An empty list is a result too: an observer wants to see exactly such a state, and asks again anyway.
    """
    try:
        async with asyncio.timeout(_COSTS_WITHIN_S):
            return [_figures(rank) for rank in await context.engine.profile()]
    except (TimeoutError, NotReady):
        return []


def _model_names(context: ApiContext) -> dict[str, object]:
    path = context.model_path
    return {"model_path": path, "tokenizer_path": path, "served_model_name": context.model_name}


def _server_info(context: ApiContext) -> dict[str, Any]:
    return {
        "version": context.version,
        **_model_names(context),
        **context.engine.server_info(),
        "served_model_names": context.model_names,
        "prefix_sharing": context.prefix_sharing,
        "sampling_defaults": context.sampling_defaults.given(),
        **({} if context.vision is None else {"images": _image_info(context.vision)}),
    }


def _image_info(vision: Vision) -> dict[str, int]:
    """Return the sizes of images and their limits, under the names of the command line's options where there is one."""
    settings, limits = vision.settings, vision.decoder.limits
    return {
        **settings.sizes.described,
        "max_tiles": most_tiles(settings, limits.pixels),
        "max_images": limits.images,
        "max_image_pixels": limits.pixels,
        "max_image_file_bytes": limits.file_bytes,
        "max_image_file_pixels": limits.file_pixels,
    }


def _loads(load: Load) -> dict[str, object]:
    """Return the load in SGLang's format; to SGLang's routers, one engine is one data-parallel rank."""
    usage = round(load.tokens_used / load.token_capacity, 4)
    rank = {
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_total_reqs": load.running + load.waiting,
        "num_used_tokens": load.tokens_used,
        "max_total_num_tokens": load.token_capacity,
        "token_usage": usage,
    }
    aggregate = {
        "total_running_reqs": load.running,
        "total_waiting_reqs": load.waiting,
        "total_reqs": load.running + load.waiting,
        "total_used_tokens": load.tokens_used,
        "avg_token_usage": usage,
    }
    return {"dp_rank_count": 1, "loads": [rank], "aggregate": aggregate}


def _older_rank_load(load: Load) -> dict[str, object]:
    """Return SGLang's older format. vllm-router also asks here, for a field that vLLM does not return either."""
    return {
        "dp_rank": 0,
        "num_reqs": load.running + load.waiting,
        "num_waiting_reqs": load.waiting,
        "num_tokens": load.tokens_used,
    }


def _cpu_times(workers: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, int]]:
    """Return the times of the threads of each rank on this host. The front end reads them, so that no step waits."""
    return {worker["rank"]: cpu_times(worker["pid"])._asdict() for worker in workers if "host" not in worker}


def _figures(profile: RankProfile) -> dict[str, object]:
    figures = msgspec.structs.asdict(profile)
    del figures["request_id"]  # the engine's id, not the client's
    return figures
