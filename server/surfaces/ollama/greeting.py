"""The answer at `/`: a redirect to the page for browsers, and for others the line by which clients recognize Ollama."""

from fastapi import Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from numaserve.server.http.errors import from_http
from numaserve.server.http.ui_files import HEADERS, page_location

# The first version with the Responses API that Codex accepts: clients compare Ollama's versions, not this server's.
OLLAMA_VERSION = "0.13.4"
_VARY = {"Vary": "Accept"}


def greeting(request: Request, *, ui: bool, root_path: str) -> Response:
    """Return Ollama's line, or a redirect to the page for browsers.

    Raises `ApiError` 404 for browsers if the page is not served.
    """
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse("Ollama is running", headers=_VARY)
    if not ui:
        raise from_http(404, "", None, request.method, request.url.path)
    return RedirectResponse(page_location(root_path), headers=HEADERS | _VARY)
