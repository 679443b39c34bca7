"""Errors in the format of each surface, including errors of the middleware."""

from collections.abc import Callable

import msgspec
from fastapi.responses import Response
from numaserve.server.http.access_log import RequestRecord
from numaserve.server.http.errors import ApiError
from numaserve.server.surfaces.anthropic import errors as anthropic
from numaserve.server.surfaces.cohere import errors as cohere
from numaserve.server.surfaces.ollama import errors as ollama
from numaserve.server.surfaces.openai import errors as openai
from numaserve.server.surfaces.tei import errors as tei
from starlette.types import Scope

# From an error and the request's id to a body. The longest matching beginning of the path decides; the default is
# OpenAI's. It ends where a part of the path ends: a client of OpenAI that leaves out /v1 requests /embeddings.
_BODIES: dict[str, Callable[[ApiError, str], object]] = {
    "/": openai.error_body,
    "/v1/messages": anthropic.error_body,
    "/api/": ollama.error_body,
    "/v2/embed": cohere.error_body,
    "/v2/rerank": cohere.error_body,
    "/rerank": tei.error_body,
    "/embed": tei.error_body,
    "/embed_sparse": tei.error_body,
    "/predict": tei.error_body,
}


def error_of(scope: Scope, error: ApiError) -> Response:
    """Return the answer to the failed request of `scope`."""
    record: RequestRecord = scope["state"]["record"]
    return error_response(error, scope["path"], record.request_id)


def error_response(error: ApiError, path: str, request_id: str = "") -> Response:
    """Return the answer to a failed request of `path`."""
    body = max((prefix for prefix in _BODIES if _begins(path, prefix)), key=len, default="/")
    content = msgspec.json.encode(_BODIES[body](error, request_id))
    return Response(content, error.status_code, error.headers, media_type="application/json")


def _begins(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else f"{prefix}/")
