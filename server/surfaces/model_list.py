"""Lists of served names in OpenAI's format, or in Anthropic's for its clients, which send a version."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from numaserve.server.images.types import ImageLimits
from numaserve.server.surfaces.streaming import json_response, utc_text

_VERSION = "anthropic-version"


def input_fields(images: ImageLimits | None, max_body_bytes: int) -> dict[str, object]:
    """Return the fields of a model that state what it takes: texts alone, or `images` too, within these limits."""
    if images is None:
        return {"input_modalities": ["text"], "image_limits": None}
    limits = {"max_images": images.images, "max_file_bytes": images.file_bytes, "max_body_bytes": max_body_bytes}
    return {"input_modalities": ["text", "image"], "image_limits": limits}


def models_answer(request: Request, models: Sequence[Mapping[str, Any]]) -> Response:
    """Return the list of `models`, each given in OpenAI's format."""
    if _VERSION not in request.headers:
        return json_response({"object": "list", "data": models})
    data = [_of_anthropic(model) for model in models]
    return json_response({"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]})


def model_answer(request: Request, model: Mapping[str, Any]) -> Response:
    """Return one model."""
    return json_response(_of_anthropic(model) if _VERSION in request.headers else model)


def _of_anthropic(model: Mapping[str, Any]) -> dict[str, object]:
    name, created = model["id"], utc_text(model["created"])
    return {"type": "model", "id": name, "display_name": name, "created_at": created}
