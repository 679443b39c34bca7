"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's formats."""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from numaserve.server.adapters.errors import AdapterError
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.body.route import body_route
from numaserve.server.surfaces.adapter_calls import MATRICES_HEADER, as_api_error, load_adapter, unload_adapter
from numaserve.server.surfaces.openapi import BODY_ERRORS, errors
from numaserve.server.surfaces.vllm.adapters_schema import LoadLoraRequest, UnloadLoraRequest

_ERRORS = {**BODY_ERRORS, **errors(409)}


def adapters_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["adapters"], route_class=body_route(context.bodies))

    @router.post("/v1/load_lora_adapter", response_class=PlainTextResponse, responses=_ERRORS)
    async def load_lora_adapter(body: LoadLoraRequest, request: Request) -> Response:
        """Load a LoRA adapter from below `--lora-root`, in vLLM's format. The header `X-Numaserve-Matrices` of the
        response is the number of matrices that the adapter changes."""
        replace = body.load_inplace is True
        try:
            adapter = await load_adapter(
                context, request, body.lora_name, body.lora_path, model=body.model, replace=replace
            )
        except AdapterError as error:
            raise as_api_error(error) from None
        text = f"Success: LoRA adapter '{adapter.name}' added successfully."
        return PlainTextResponse(text, headers={MATRICES_HEADER: str(adapter.matrices)})

    @router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse, responses=_ERRORS)
    async def unload_lora_adapter(body: UnloadLoraRequest, request: Request) -> Response:
        """Unload a LoRA adapter, in vLLM's format. The response comes when the requests that use the adapter have
        ended."""
        try:
            await unload_adapter(context, request, body.lora_name, model=body.model)
        except AdapterError as error:
            raise as_api_error(error) from None
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return router
