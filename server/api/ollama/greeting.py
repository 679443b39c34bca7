"""The answer of Ollama at `/`, which its clients take for a sign that it runs."""

from fastapi import Request
from fastapi.responses import PlainTextResponse, Response
from numaserve.server.api.errors import from_http

# The first version whose Responses API Codex takes: clients compare versions of Ollama, and know none of this server.
OLLAMA_VERSION = "0.13.4"


def greeting(request: Request) -> Response:
    """Ollama's line, which is not for browsers. Raises `ApiError` 404 for those."""
    if "text/html" in request.headers.get("accept", ""):
        raise from_http(404, "", None, request.method, request.url.path)
    return PlainTextResponse("Ollama is running")
