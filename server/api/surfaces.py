"""The surfaces' errors: each answers in its own shape, errors of the middleware too."""

from collections.abc import Callable

import msgspec
from fastapi.responses import Response
from numaserve.server.api.errors import ApiError
from numaserve.server.api.ollama import errors as ollama
from numaserve.server.api.openai import errors as openai

# The longest prefix of a path counts; all others speak as OpenAI does.
_BODIES: dict[str, Callable[[ApiError], object]] = {"/": openai.error_body, "/api/": ollama.error_body}


def error_response(error: ApiError, path: str) -> Response:
    """The answer to a request of `path` that failed."""
    body = max((prefix for prefix in _BODIES if path.startswith(prefix)), key=len, default="/")
    content = msgspec.json.encode(_BODIES[body](error))
    return Response(content, error.status_code, error.headers, media_type="application/json")
