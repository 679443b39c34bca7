"""The ASGI application: the routes, their errors, and the middleware around them."""

import logging
from collections.abc import Mapping, Sequence
from itertools import chain

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from numaserve.server.app.middleware.answer_limit import AnswerLimit
from numaserve.server.app.middleware.body_limit import BodyLimit
from numaserve.server.app.middleware.browsers import Browsers
from numaserve.server.app.middleware.caller import SetCaller
from numaserve.server.app.middleware.header_limit import HeaderLimit
from numaserve.server.app.middleware.key_limits import KeepLimits
from numaserve.server.app.middleware.paths import Paths
from numaserve.server.app.middleware.request_scope import RequestScope
from numaserve.server.app.middleware.request_timeout import RequestTimeout
from numaserve.server.app.middleware.require_key import RequireKey
from numaserve.server.app.middleware.root_path import StripRootPath
from numaserve.server.app.middleware.trace_parent import TraceParent
from numaserve.server.engine.types import EngineError
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.access_log import record_of
from numaserve.server.http.errors import (
    ApiError,
    from_engine,
    from_http,
    from_validation,
    tokenizer_failed,
    tokenizer_unavailable,
)
from numaserve.server.http.limits import ApiLimits
from numaserve.server.http.route_names import route_of
from numaserve.server.surfaces.anthropic.messages import messages_router
from numaserve.server.surfaces.cohere.routes import cohere_router
from numaserve.server.surfaces.errors import error_of
from numaserve.server.surfaces.ollama.embed import ollama_embed_router
from numaserve.server.surfaces.ollama.generation import ollama_generation_router
from numaserve.server.surfaces.ollama.models import ollama_models_router
from numaserve.server.surfaces.openai.chats.chat import chat_router
from numaserve.server.surfaces.openai.completions import completions_router
from numaserve.server.surfaces.openai.embeddings import embeddings_router
from numaserve.server.surfaces.openai.models import models_router
from numaserve.server.surfaces.openai.responses.routes import responses_router
from numaserve.server.surfaces.openapi import describe
from numaserve.server.surfaces.operations.health import health_router
from numaserve.server.surfaces.operations.info import info_router
from numaserve.server.surfaces.operations.ui import ui_router
from numaserve.server.surfaces.rerank.routes import rerank_router
from numaserve.server.surfaces.sglang.adapters import sglang_adapters_router
from numaserve.server.surfaces.sglang.generate import generate_router
from numaserve.server.surfaces.tei.predict import predict_router
from numaserve.server.surfaces.tei.routes import tei_router
from numaserve.server.surfaces.vllm.adapters import adapters_router
from numaserve.server.surfaces.vllm.routes import vllm_router
from numaserve.server.surfaces.vllm.tokenize import tokenize_router
from numaserve.server.tokenizer.types import TextBeyondLimits, TokenizationError, TokenizerUnavailable
from starlette.exceptions import HTTPException

__all__ = ["ApiContext", "ApiLimits", "create_app"]

_logger = logging.getLogger("numaserve.api")


def create_app(context: ApiContext) -> FastAPI:
    """Return the ASGI application over `context`."""
    # No documentation pages: they load scripts from other sites. No redirects to paths with a slash: their target
    # would be built from the client's Host header.
    app = FastAPI(
        title="numaserve",
        version=context.version,
        servers=[{"url": context.root_path}] if context.root_path else None,
        openapi_url=None,  # see `describe`
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    routers = (
        chat_router(context),
        completions_router(context),
        embeddings_router(context),
        rerank_router(context),
        models_router(context),
        responses_router(context),
        messages_router(context),
        tokenize_router(context),
        health_router(context),
        info_router(context),
        ollama_generation_router(context),
        ollama_embed_router(context),
        ollama_models_router(context),
        cohere_router(context),
        tei_router(context),
        predict_router(context),
        generate_router(context),
        vllm_router(context),
        adapters_router(context),
        sglang_adapters_router(context),
        ui_router(context),
    )
    for router in routers:
        app.include_router(router)
    describe(app, has_keys=context.api_keys is not None)
    _answer_errors(app, context, _methods(routers))
    # The middleware added last is the outermost.
    app.add_middleware(SetCaller, context=context)
    app.add_middleware(AnswerLimit, limits=context.limits)
    app.add_middleware(BodyLimit, limits=context.limits)
    if context.api_keys is not None:
        app.add_middleware(KeepLimits, context=context, keys=context.api_keys)
        refused = context.metrics.request_refused
        app.add_middleware(RequireKey, keys=context.api_keys, refused=refused, open_paths=context.open_paths)
    app.add_middleware(Browsers, rules=context.browsers, has_keys=context.api_keys is not None)
    app.add_middleware(RequestTimeout, limits=context.limits)
    app.add_middleware(HeaderLimit, limits=context.limits)
    app.add_middleware(RequestScope)
    if context.traced:
        app.add_middleware(TraceParent)
    if context.root_path:
        app.add_middleware(StripRootPath, prefix=context.root_path)
    app.add_middleware(Paths)
    return app


def _methods(routers: Sequence[APIRouter]) -> dict[str, str]:
    """Return the methods of each path; the framework reports only those of a path's first route."""
    methods: dict[str, set[str]] = {}
    for route in chain.from_iterable(router.routes for router in routers):
        if isinstance(route, APIRoute):
            methods.setdefault(route.path, set()).update(route.methods or ())
    return {path: ", ".join(sorted(names)) for path, names in methods.items()}


def _answer_errors(app: FastAPI, context: ApiContext, methods: Mapping[str, str]) -> None:
    async def answer(request: Request, error: Exception) -> Response:
        answered = _as_api_error(request, error)
        if answered.status_code == 405:
            allowed = methods.get(route_of(request.scope))
            answered.headers = {"Allow": allowed} if allowed else answered.headers
        if answered.refusal is not None:
            context.metrics.request_refused(answered.refusal)
        return error_of(request.scope, answered)

    for kind in (HTTPException, RequestValidationError, EngineError, TokenizationError, TokenizerUnavailable):
        app.add_exception_handler(kind, answer)


def _as_api_error(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return from_validation(error)
        case EngineError():
            return from_engine(error)
        case TokenizationError() | TokenizerUnavailable():
            return _from_tokenizer(request, error)
        case HTTPException():
            return from_http(error.status_code, error.detail, error.headers, request.method, request.url.path)
        case _:
            raise error


def _from_tokenizer(request: Request, error: TokenizationError | TokenizerUnavailable) -> ApiError:
    if isinstance(error, TokenizerUnavailable):
        return tokenizer_unavailable(str(error))
    # The library's message is logged only: it may name the server's files.
    _logger.error("%s", error, extra={"fields": {"request_id": record_of(request).request_id}})
    return tokenizer_failed(str(error) if isinstance(error, TextBeyondLimits) else None)
