"""The adapter that a request chooses by the name of its model."""

from numaserve.server.adapters.errors import AdapterError
from numaserve.server.generation.asked import Asked
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.served_names import LATEST
from numaserve.server.http.errors import ApiError, model_not_found, not_ready
from numaserve.server.scheduler.adapter import Adapter


def chosen_adapter(context: ApiContext, model: str | None, lora: str | None = None) -> Adapter | None:
    """Return the adapter that a request chooses: as its `model`, or else by the name `lora`; None for the model alone.

    Raises `ApiError` 404 for other names, and 503 while the adapter is being replaced.
    """
    found = None if model is None else _adapter(context, model)
    if model is not None and found is None and not context.serves(model):
        raise model_not_found(model, context.model_names)
    if found is not None or lora is None:
        return found
    named = _adapter(context, lora)
    if named is None:
        raise _adapter_not_found(context, lora)
    return named


def adapter_of(context: ApiContext, asked: Asked) -> Adapter | None:
    """Return the adapter that `asked` chooses. Raises as `chosen_adapter` does."""
    return chosen_adapter(context, asked.model, asked.lora)


def answering_name(context: ApiContext, model: str | None, lora: str | None = None) -> str:
    """Return the name of the model in an answer: that of the adapter, or the first name of the model.

    An unknown name is refused elsewhere.
    """
    names = [each.removesuffix(LATEST) for each in (model, lora) if each is not None]
    return next((each for each in names if each in context.adapters.loaded), context.model_name)


def _adapter(context: ApiContext, name: str) -> Adapter | None:
    try:
        return context.adapters.find(name) or context.adapters.find(name.removesuffix(LATEST))
    except AdapterError as error:
        raise not_ready(str(error)) from None


def _adapter_not_found(context: ApiContext, name: str) -> ApiError:
    loaded = ", ".join(f"'{each}'" for each in list(context.adapters.loaded)[:5]) or "no adapter"
    message = f"The LoRA adapter '{name[:256]}' is not loaded. The server has {loaded}; GET /v1/models lists all."
    return ApiError(404, message, param="lora_path", code="model_not_found")
