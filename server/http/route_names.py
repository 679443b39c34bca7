"""The names of routes in the log.

The router names the route of a request that reaches it. This table names requests that are refused earlier, or that a
gateway passes on: the path itself is the client's text with unbounded variety. A gateway has no application with routes
to look up; building one for the names alone would take a second and 40 MB.
"""

import functools
import re

from numaserve.server.http.ui_files import ui_files
from starlette.routing import compile_path
from starlette.types import Scope

UNMATCHED = "unmatched"
# Routes of a server of one model.
API_ROUTES = frozenset(
    {
        *("/", "/health", "/health_generate", "/livez", "/ping", "/readyz", "/version", "/openapi.json", "/metrics"),
        *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/models/{name:path}"),
        *("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/{response_id}"),
        "/v1/responses/{response_id}/input_items",
        *("/v1/messages", "/v1/messages/count_tokens"),
        *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"),
        *("/tokenize", "/detokenize", "/tokenizer_info"),
        *("/api/chat", "/api/embed", "/api/embeddings", "/api/generate", "/api/ps", "/api/pull", "/api/show"),
        *("/api/tags", "/api/version"),
        *("/v2/embed", "/embed", "/embed_sparse", "/predict"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"),
        *("/generate", "/abort_request", "/flush_cache", "/reset_prefix_cache"),
        *("/server_info", "/get_server_info", "/model_info", "/get_model_info", "/machine"),
        *("/v1/loads", "/get_load", "/load"),
        *ui_files(),
    }
)
# Routes that only a gateway to several models has.
GATEWAY_ROUTES = frozenset({"/models/load", "/models/unload"})


def route_of(scope: Scope) -> str:
    """Return the template of a request's route, or `UNMATCHED`."""
    route = scope.get("route")
    return _named(scope["path"]) if route is None else str(route.path)


def _named(path: str) -> str:
    if path in API_ROUTES or path in GATEWAY_ROUTES:
        return path
    return next((template for template, pattern in _patterns() if pattern.match(path)), UNMATCHED)


@functools.cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [(template, compile_path(template)[0]) for template in sorted(API_ROUTES) if "{" in template]
