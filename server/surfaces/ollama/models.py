"""GET /api/tags, /api/ps, /api/version and POST /api/show and /api/pull."""

import hashlib
from collections.abc import Iterable
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.conversation.fill_in import fill_in_of
from numaserve.server.generation.purpose import Generates
from numaserve.server.generation.served_names import LATEST
from numaserve.server.generation.start import check_model
from numaserve.server.http.body.route import body_route
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.surfaces.ollama.greeting import OLLAMA_VERSION, greeting
from numaserve.server.surfaces.ollama.names import tagged
from numaserve.server.surfaces.ollama.responses import (
    BODY_ERRORS,
    ERRORS,
    ApiVersion,
    ListedModels,
    PullAnswer,
    RunningModels,
    ShownModel,
)
from numaserve.server.surfaces.ollama.show_schema import OllamaPullRequest, OllamaShowRequest
from numaserve.server.surfaces.openapi import json_lines
from numaserve.server.surfaces.streaming import json_response, utc_text

_NEVER = "9999-12-31T23:59:59Z"


def ollama_models_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["ollama"], route_class=body_route(context.bodies, any_content_type=True))
    modified_at = utc_text(context.created)

    def models(**more: object) -> list[dict[str, object]]:
        size = _size(context)
        return [
            {"name": tagged(name), "model": tagged(name), "size": size, "digest": _digest(context, name)}
            | {"details": _details(context, name), **more}
            for name in context.model_names
        ]

    @router.get("/api/tags", response_model=ListedModels, responses=ERRORS)
    async def ollama_tags() -> Response:
        """List the served model under each of its names, and its LoRA adapters, in Ollama's format."""
        return json_response({"models": models(modified_at=modified_at)})

    @router.get("/api/ps", response_model=RunningModels, responses=ERRORS)
    async def ollama_ps() -> Response:
        """List the served model while the server accepts requests, otherwise no model."""
        if not context.engine.is_ready():
            return json_response({"models": []})
        length = context.limits.context_length
        return json_response({"models": models(expires_at=_NEVER, size_vram=0, context_length=length)})

    @router.post("/api/show", response_model=ShownModel, responses=BODY_ERRORS)
    async def ollama_show(body: OllamaShowRequest) -> Response:
        """Return the model's context length and capabilities, in Ollama's format."""
        check_model(context, body.named)
        answer: dict[str, object] = {"modelfile": "", "parameters": "", "template": ""}
        answer["details"] = _details(context, body.named)
        answer |= {"model_info": _info(context), "capabilities": _capabilities(context), "modified_at": modified_at}
        return json_response(answer)

    @router.post("/api/pull", response_model=PullAnswer, responses={200: json_lines(PullAnswer), **BODY_ERRORS})
    async def ollama_pull(body: OllamaPullRequest) -> Response:
        """Confirm that the served model is available; the server downloads nothing."""
        check_model(context, body.named)
        if body.stream is False:
            return json_response({"status": "success"})
        return Response(b'{"status":"success"}\n', media_type="application/x-ndjson")

    @router.get("/", include_in_schema=False)
    async def ollama_root(request: Request) -> Response:
        return greeting(request, ui=context.ui, root_path=context.root_path)

    @router.get("/api/version", response_model=ApiVersion, responses=ERRORS)
    async def ollama_version() -> Response:
        """Return the version of Ollama's API that the server supports; /version returns the server's own version."""
        return json_response({"version": OLLAMA_VERSION})

    return router


def _details(context: ApiContext, name: str) -> dict[str, object]:
    adapter = _adapter(context, name)
    kind = "gguf" if (context.model_path if adapter is None else adapter.path).endswith(".gguf") else "safetensors"
    unknown = {"family": "", "families": [], "parameter_size": "", "quantization_level": ""}
    return {"parent_model": "" if adapter is None else context.model_name, "format": kind, **unknown}


def _adapter(context: ApiContext, name: str) -> Adapter | None:
    return context.adapters.loaded.get(name.removesuffix(LATEST))


def _size(context: ApiContext) -> int:
    """Return the bytes of weights in memory; 0 until they are loaded."""
    workers = cast(Iterable[dict[str, Any]], context.engine.server_info().get("workers", ()))
    return sum(worker.get("weight_bytes", 0) for worker in workers)


def _digest(context: ApiContext, name: str) -> str:
    # Of the name and the path alone: no client benefits from reading gigabytes of weights for it.
    adapter = _adapter(context, name)
    if adapter is not None:
        return adapter.digest
    return hashlib.sha256(f"{name}\n{context.model_path}".encode()).hexdigest()


def _info(context: ApiContext) -> dict[str, object]:
    # Clients look for a key with this suffix, which follows the architecture's name.
    return {
        "general.architecture": "numaserve",
        "general.basename": context.model_name.rpartition("/")[2],
        "numaserve.context_length": context.limits.context_length,
    }


def _capabilities(context: ApiContext) -> list[str]:
    if not isinstance(context.purpose, Generates):
        return ["embedding"] if context.purpose.task == "embed" else []
    known = {"tools": context.tells_calls, "thinking": context.tells_thoughts}
    known["insert"] = fill_in_of(context.tokenizer) is not None
    known["vision"] = context.vision is not None
    return ["completion", *(name for name, is_known in known.items() if is_known)]
