"""GET /health, /livez, /readyz (open to all, because they only answer yes or no) and /version."""

from fastapi import APIRouter
from fastapi.responses import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.errors import ApiError, not_ready
from numaserve.server.surfaces.errors import error_response
from numaserve.server.surfaces.openapi import errors
from numaserve.server.surfaces.service_models import Status, Version
from numaserve.server.surfaces.streaming import json_response


def health_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["health"])

    def ready() -> Response:
        if context.engine.is_ready():
            return json_response({"status": "ok"})
        # Not counted as a refused request, because a probe asks for no tokens.
        return error_response(not_ready("The server is loading, restarting or shutting down."), "/")

    @router.get("/health", response_model=Status, responses=errors(503))
    async def health() -> Response:
        """Return 200 when the server accepts requests, otherwise 503: loading, restarting or draining."""
        return ready()

    @router.get("/readyz", response_model=Status, responses=errors(503))
    async def readyz() -> Response:
        """Return 200 when the server accepts requests, otherwise 503: loading, restarting or draining."""
        return ready()

    @router.get("/livez", response_model=Status, responses=errors(503))
    async def livez() -> Response:
        """Return 503 only after the engine has failed permanently, otherwise 200."""
        if context.engine.is_alive():
            return json_response({"status": "ok"})
        return error_response(
            ApiError(
                503, "The engine has failed permanently. Restart the server.", kind="server_error", code="not_alive"
            ),
            "/",
        )

    @router.get("/version", response_model=Version, responses=errors())
    async def version() -> Response:
        """Return the server's version."""
        return json_response({"version": context.version})

    return router
