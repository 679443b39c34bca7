"""GET /v1/models and /v1/models/{model}."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.served_names import LATEST
from numaserve.server.generation.start import check_model
from numaserve.server.surfaces.model_list import input_fields, model_answer, models_answer
from numaserve.server.surfaces.openapi import errors
from numaserve.server.surfaces.service_models import AnthropicModel, AnthropicModelList, Model, ModelList


def models_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", response_model=ModelList | AnthropicModelList, responses=errors())
    async def list_models(request: Request) -> Response:
        """List the served model under each of its names, and its LoRA adapters with the model as `parent`; in
        Anthropic's format for requests with `anthropic-version`."""
        return models_answer(request, [_described(context, name) for name in context.model_names])

    @router.get("/v1/models/{name:path}", response_model=Model | AnthropicModel, responses=errors(404))
    async def retrieve_model(name: str, request: Request) -> Response:
        """Return the served model under one of its names, or a LoRA adapter; in Anthropic's format for requests with
        `anthropic-version`."""
        check_model(context, name)
        return model_answer(request, _described(context, name))

    return router


def _described(context: ApiContext, name: str) -> dict[str, object]:
    images = None if context.vision is None else context.vision.decoder.limits
    adapter = context.adapters.loaded.get(name.removesuffix(LATEST))
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "numaserve",
        "root": context.own_name or context.model_name if adapter is None else adapter.path,
        "parent": None if adapter is None else context.model_name,
        "max_model_len": context.limits.context_length,
        **input_fields(images, context.limits.max_body_bytes),
    }
