"""GET /ui: a page to chat with the model and to look at the machine. Its files are the package's, and nothing else is
loaded; they are open to all, and hold nothing that is not in the source. What the page shows it asks for with a key."""

import functools

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from numaserve.server.api.context import ApiContext
from numaserve.server.api.ui_files import HEADERS, PAGE, UiFile, ui_files


def ui_router(context: ApiContext) -> APIRouter:
    """The routes of this file; none where the operator wants no page."""
    router = APIRouter(include_in_schema=False)
    for path, file in ui_files().items() if context.ui else ():
        router.add_api_route(path, functools.partial(_answer, file), methods=["GET"])
    return router


async def _answer(file: UiFile, request: Request) -> Response:
    # The page names its files relative to its own path, which a proxy may have prefixed: a slash at the end, which is
    # taken off elsewhere, would change what that means. The target is relative, so no Host header is in it.
    if request.scope.get("raw_path", b"").endswith(f"{PAGE}/".encode()):
        return RedirectResponse(f"..{PAGE}", headers=HEADERS)
    return Response(file.content, media_type=file.kind, headers=HEADERS)
