"""The loads and unloads of LoRA adapters that clients ask for, without the form of the answer."""

import asyncio

from fastapi import Request
from numaserve.server.adapters.errors import AdapterError, Kind
from numaserve.server.adapters.paths import path_below
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.start import check_model
from numaserve.server.http.auth.admin import check_admin
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import ApiError, not_ready
from numaserve.server.scheduler.adapter import Adapter

MATRICES_HEADER = "X-Numaserve-Matrices"  # the number of matrices that a loaded adapter changes

_STATUS: dict[Kind, tuple[int, str]] = {
    "invalid": (400, "invalid_adapter"),
    "missing": (404, "adapter_not_found"),
    "full": (409, "adapter_memory_used"),
    "busy": (409, "adapter_busy"),
    "forbidden": (403, "forbidden"),
    "not_ready": (503, "not_ready"),
    "failed": (500, "adapter_failed"),
}


async def load_adapter(
    context: ApiContext, request: Request, name: str, path: str, *, model: str | None, replace: bool
) -> Adapter:
    """Load the adapter at `path` for the served `model`, and return it. Raises `ApiError` and `AdapterError`."""
    _check_allowed(context, request, model)
    real = await asyncio.to_thread(path_below, context.lora_root, path)
    return await until_disconnect(request, context.adapters.load(name, real, replace=replace))


async def unload_adapter(context: ApiContext, request: Request, name: str, *, model: str | None) -> None:
    """Unload the adapter, and return when its requests have ended. Raises `ApiError` and `AdapterError`."""
    _check_allowed(context, request, model)
    await until_disconnect(request, context.adapters.unload(name))


def as_api_error(error: AdapterError) -> ApiError:
    """Return the answer to a load or an unload that did not succeed."""
    if error.kind == "not_ready":
        answered = not_ready(str(error))
        answered.refusal = None  # the request asked for no tokens
        return answered
    status, code = _STATUS[error.kind]
    kind = "server_error" if status == 500 else "invalid_request_error"
    return ApiError(status, str(error), kind=kind, code=code, refusal=None)


def _check_allowed(context: ApiContext, request: Request, model: str | None) -> None:
    what = "Loading and unloading LoRA adapters"
    check_admin(what, context.api_keys, request.scope["headers"], is_local=context.is_local)
    check_model(context, model)
