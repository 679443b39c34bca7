"""All error answers, as data; each surface writes them in a form of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from numaserve.server.engine.types import (
    Aborted,
    AdapterGone,
    Busy,
    EngineError,
    NotReady,
    QueueFull,
    RequestTimedOut,
    RequestTooLong,
)
from numaserve.server.http.explain import Problem, explain
from numaserve.server.metrics.labels import Refusal
from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from fastapi.exceptions import RequestValidationError

_SHOWN_NAMES = 5
# Seconds. Workers that restart load their weights in some seconds, and a balancer has other servers by then.
_NOT_READY_S = 5


@dataclass(frozen=True)
class Overflow:
    """A prompt that is too long: its tokens, at least those counted so far, and the maximum."""

    tokens: int
    maximum: int


class ApiError(HTTPException):
    """An answer other than 2xx. `refusal` is the reason under which it is counted; None: not counted.

    `overflow` is set if the prompt alone is too long; a surface may have its own message for that.

    It is an `HTTPException` because FastAPI turns any other exception while reading the body into a 400.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        refusal: Refusal | None = "invalid",
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers) if headers else None)
        self.message = _utf8(message)
        self.kind = kind
        self.param = None if param is None else _utf8(param)
        self.code = code
        self.refusal = refusal
        self.overflow = overflow


def _utf8(text: str) -> str:
    # The name of an unknown field is the client's text and may not be encodable.
    return text.encode(errors="replace").decode()


def bad_request(message: str, param: str | None, code: str | None = None) -> ApiError:
    """Return the error for a value that cannot be served; `param` names the field."""
    return ApiError(400, message, param=param, code=code)


def context_length_exceeded(message: str, param: str | None, overflow: Overflow | None = None) -> ApiError:
    """Return the error for a prompt and output that do not fit the context."""
    code = "context_length_exceeded"
    return ApiError(400, message, param=param, code=code, refusal="too_long", overflow=overflow)


def tokenizer_failed(reason: str | None = None) -> ApiError:
    """Return the error for a text that the model's tokenizer cannot process.

    It is no 5xx: the text fails again on every retry and every server of the model, and clients and routers retry a
    5xx.
    """
    why = "" if reason is None else f": {reason}"
    return bad_request(f"The model's tokenizer cannot process this text{why}.", None, "tokenizer_failed")


def token_unknown(param: str, token: int, vocab_size: int) -> ApiError:
    """Return the error for a token id outside the vocabulary."""
    return bad_request(
        f"'{param}' contains the token id {token}; this model's token ids are below {vocab_size}.",
        param,
        "token_unknown",
    )


def model_not_found(model: str, names: Collection[str]) -> ApiError:
    """Return the error for a model that is not among the served `names`. A file may name hundreds: some are shown."""
    shown = ", ".join(f"'{name}'" for name in islice(names, _SHOWN_NAMES))
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    message = f"The model '{model[:256]}' does not exist. The server has {shown}{more}; GET /v1/models lists all."
    return ApiError(404, message, param="model", code="model_not_found")


def unauthorized() -> ApiError:
    """Return the error for a missing or unknown key; the answer does not distinguish the two."""
    return ApiError(
        401,
        "The request has no valid API key. Send one as 'Authorization: Bearer KEY'.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
        refusal="unauthorized",
    )


def client_left() -> ApiError:
    """Return an error for the log only: the client has disconnected and reads no response."""
    return ApiError(499, "The client disconnected before its request was answered.", refusal=None)


def rate_limited(
    message: str, *, retry_after: int = 1, close: bool = False, refusal: Refusal = "queue_full"
) -> ApiError:
    """Return the error for a reached limit: retry after `retry_after` seconds; with `close`, on another connection."""
    headers = {"Retry-After": str(retry_after)} | ({"Connection": "close"} if close else {})
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", headers=headers, refusal=refusal)


def too_slow(what: str) -> ApiError:
    """Return the error for `what`, a part of the request that did not arrive in time. The rest is not read."""
    return ApiError(408, f"{what} did not arrive in time.", code="request_timeout", headers={"Connection": "close"})


def too_large(message: str, *, close: bool = False) -> ApiError:
    """Return the error for a body that is too long for any request, or for this one. With `close` the rest is not
    read."""
    headers = {"Connection": "close"} if close else None
    return ApiError(413, message, code="request_too_large", headers=headers, refusal="too_large")


def too_many_headers(limit: int) -> ApiError:
    """Return the error for a request with more headers than `limit`."""
    return ApiError(431, f"The request has more than {limit} headers. Send fewer headers.")


def not_ready(message: str, *, retry_after: int | None = _NOT_READY_S) -> ApiError:
    """Return the error for a server that is loading, restarting or draining: retry after `retry_after` seconds; None
    for a state that time alone does not end."""
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return ApiError(503, message, kind="server_error", code="not_ready", headers=headers, refusal="not_ready")


def template_unavailable(message: str) -> ApiError:
    """Return the error for a stuck chat template process. The conversation is not at fault and may be sent again."""
    return ApiError(503, message, kind="server_error", code="chat_template_unavailable", refusal="not_ready")


def tokenizer_unavailable(message: str) -> ApiError:
    """Return the error for a stuck tokenizer process. The text is not at fault and may be sent again."""
    return ApiError(503, message, kind="server_error", code="tokenizer_unavailable", refusal="not_ready")


def internal_error() -> ApiError:
    """Return the answer to an unexpected error, which only the log describes, under the request id."""
    return ApiError(
        500,
        "The server had an error while processing your request. "
        "The server log records the error under the X-Request-Id of this response.",
        kind="server_error",
        code="internal_error",
        refusal=None,
    )


# The status, type and code of those ends of requests that have their own.
_ENDED: dict[type[EngineError], tuple[int, str, str]] = {
    Aborted: (400, "invalid_request_error", "aborted"),
    Busy: (409, "invalid_request_error", "requests_running"),
    RequestTimedOut: (504, "timeout_error", "deadline_exceeded"),
}


def from_engine(error: EngineError) -> ApiError:
    """Return the answer to a request that the engine refused or could not finish."""
    if isinstance(error, QueueFull):
        return rate_limited(str(error), retry_after=error.retry_after)
    if isinstance(error, NotReady):
        return not_ready(str(error))
    if isinstance(error, AdapterGone):
        return ApiError(404, str(error), param="model", code="model_not_found")
    if isinstance(error, RequestTooLong):
        return context_length_exceeded(str(error), None)
    # The engine counts the ends of admitted requests; counting them here would count them twice.
    status, kind, code = _ENDED.get(type(error), (500, "server_error", "generation_failed"))
    return ApiError(status, str(error), kind=kind, code=code, refusal=None)


def from_http(status: int, detail: str, headers: Mapping[str, str] | None, method: str, path: str) -> ApiError:
    """Return the answer to an error of the framework: unknown route, wrong method, unreadable body."""
    if status == 404:
        message = f"Unknown request URL: {method} {path[:256]}. GET /openapi.json describes all routes."
        return ApiError(404, message, code="unknown_url", refusal=None)
    if status == 405:
        message = f"Not allowed to {method} on {path[:256]}."
        return ApiError(405, message, code="method_not_supported", headers=headers, refusal=None)
    return ApiError(status, detail, headers=headers)


def from_validation(error: RequestValidationError) -> ApiError:
    """Return the answer to an invalid request, which names the first problem."""
    return from_problem(explain(error.errors()))


def from_problem(problem: Problem) -> ApiError:
    """Return the answer to a request with this problem."""
    return bad_request(problem.message, problem.param, problem.code)
