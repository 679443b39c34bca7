"""GET /ui: a page to chat with the model and to look at the machine. Its files are the package's, and nothing else is
loaded; they are open to all, and hold nothing that is not in the source. What the page shows it asks for with a key."""

import functools

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.ui_files import ui_answer, ui_files


def ui_router(context: ApiContext) -> APIRouter:
    """The routes of this file; none where the operator wants no page."""
    router = APIRouter(include_in_schema=False)
    for path in ui_files() if context.ui else ():
        router.add_api_route(path, functools.partial(_answer, path), methods=["GET"])
    return router


async def _answer(path: str, request: Request) -> Response:
    return ui_answer(path, request)
