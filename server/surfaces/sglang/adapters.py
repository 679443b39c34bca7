"""POST /load_lora_adapter and /unload_lora_adapter, in SGLang's formats."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.adapters.errors import AdapterError
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.body.route import body_route
from numaserve.server.surfaces.adapter_calls import as_api_error, load_adapter, unload_adapter
from numaserve.server.surfaces.openapi import BODY_ERRORS, errors
from numaserve.server.surfaces.sglang.adapters_schema import (
    SGLangLoadLoraRequest,
    SGLangLoras,
    SGLangUnloadLoraRequest,
)
from numaserve.server.surfaces.streaming import json_response

_ERRORS = {**BODY_ERRORS, **errors(409)}


def sglang_adapters_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["sglang"], route_class=body_route(context.bodies))

    @router.post("/load_lora_adapter", response_model=SGLangLoras, responses=_ERRORS)
    async def load_sglang_lora_adapter(body: SGLangLoadLoraRequest, request: Request) -> Response:
        """Load a LoRA adapter from below `--lora-root`, in SGLang's format."""
        name, path = body.lora_name, body.lora_path
        try:
            adapter = await load_adapter(context, request, name, path, model=body.model, replace=False)
        except AdapterError as error:
            return _refused(context, error)
        return json_response(_result(context) | {"matrices": adapter.matrices})

    @router.post("/unload_lora_adapter", response_model=SGLangLoras, responses=_ERRORS)
    async def unload_sglang_lora_adapter(body: SGLangUnloadLoraRequest, request: Request) -> Response:
        """Unload a LoRA adapter, in SGLang's format. The response comes when the requests that use the adapter have
        ended."""
        try:
            await unload_adapter(context, request, body.lora_name, model=body.model)
        except AdapterError as error:
            return _refused(context, error)
        return json_response(_result(context))

    return router


def _refused(context: ApiContext, error: AdapterError) -> Response:
    """Return a refusal in SGLang's form. SGLang's status is always 400; its clients read `success`."""
    answered = as_api_error(error)
    answer = json_response(_result(context, str(error)))
    answer.status_code = answered.status_code
    answer.headers.update(answered.headers or {})
    return answer


def _result(context: ApiContext, error: str = "") -> dict[str, object]:
    loaded = {each.name: each.path for each in context.adapters.loaded.values()}
    return {"success": not error, "error_message": error, "loaded_adapters": loaded}
