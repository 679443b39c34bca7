"""The surfaces' errors: each answers in its own shape, errors of the middleware too."""

from collections.abc import Callable

import msgspec
from fastapi.responses import Response
from numaserve.server.http.access_log import RequestRecord
from numaserve.server.http.errors import ApiError
from numaserve.server.surfaces.anthropic import errors as anthropic
from numaserve.server.surfaces.ollama import errors as ollama
from numaserve.server.surfaces.openai import errors as openai
from starlette.types import Scope

# From an error and the request's id to a body. The longest prefix of a path counts; all others speak as OpenAI does.
_BODIES: dict[str, Callable[[ApiError, str], object]] = {
    "/": openai.error_body,
    "/v1/messages": anthropic.error_body,
    "/api/": ollama.error_body,
}


def error_of(scope: Scope, error: ApiError) -> Response:
    """The answer to the request of `scope`, which failed."""
    record: RequestRecord = scope["state"]["record"]
    return error_response(error, scope["path"], record.request_id)


def error_response(error: ApiError, path: str, request_id: str = "") -> Response:
    """The answer to a request of `path` that failed."""
    body = max((prefix for prefix in _BODIES if path.startswith(prefix)), key=len, default="/")
    content = msgspec.json.encode(_BODIES[body](error, request_id))
    return Response(content, error.status_code, error.headers, media_type="application/json")
