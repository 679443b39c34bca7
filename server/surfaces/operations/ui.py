"""GET /ui: a page to chat with the model and to observe the machine.

The page loads only files of this package. They are open to all and contain nothing that is not in the source. The page
requests its data with an API key.
"""

import functools

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.ui_files import ui_answer, ui_files


def ui_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module; none if the operator disables the page."""
    router = APIRouter(include_in_schema=False)
    for path in ui_files() if context.ui else ():
        router.add_api_route(path, functools.partial(_answer, path), methods=["GET"])
    return router


async def _answer(path: str, request: Request) -> Response:
    return ui_answer(path, request)
