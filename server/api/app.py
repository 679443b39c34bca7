"""The application: routes, the errors they end in, and what surrounds them."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from numaserve.server.api.chat import chat_router
from numaserve.server.api.completions import completions_router
from numaserve.server.api.context import ApiContext, ApiLimits
from numaserve.server.api.errors import ApiError, from_engine, from_http, from_validation
from numaserve.server.api.health import health_router
from numaserve.server.api.info import info_router
from numaserve.server.api.middleware import BodyLimit, HeaderLimit, RequestScope, RequireKey
from numaserve.server.api.models import models_router
from numaserve.server.api.tokenize import tokenize_router
from numaserve.server.engine.types import EngineError
from starlette.exceptions import HTTPException

__all__ = ["ApiContext", "ApiLimits", "create_app"]


def create_app(context: ApiContext) -> FastAPI:
    """The ASGI application over `context`."""
    # No documentation pages: they load scripts from elsewhere. No redirects to paths with a slash: their target would
    # be built from the client's Host header.
    app = FastAPI(title="numaserve", version=context.version, docs_url=None, redoc_url=None, redirect_slashes=False)
    for router in (
        chat_router(context),
        completions_router(context),
        models_router(context),
        tokenize_router(context),
        health_router(context),
        info_router(context),
    ):
        app.include_router(router)
    _answer_errors(app, context)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, context=context)
    app.add_middleware(RequireKey, context=context)
    app.add_middleware(HeaderLimit, context=context)
    app.add_middleware(RequestScope)
    return app


def _answer_errors(app: FastAPI, context: ApiContext) -> None:
    async def answer(request: Request, error: Exception) -> Response:
        answered = _as_api_error(request, error)
        if answered.refusal is not None:
            context.metrics.request_refused(answered.refusal)
        return answered.response()

    for kind in (HTTPException, RequestValidationError, EngineError):
        app.add_exception_handler(kind, answer)


def _as_api_error(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return from_validation(error)
        case EngineError():
            return from_engine(error)
        case HTTPException():
            return from_http(error.status_code, error.detail, error.headers, request.method, request.url.path)
        case _:
            raise error
