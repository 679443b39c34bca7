"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``."""

from numaserve.server.http.errors import ApiError

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError, request_id: str = "") -> dict[str, object]:
    """Return the JSON object for clients; it is also sent as an event in the middle of a stream, where no id is
    known."""
    message, overflow = error.message, error.overflow
    if overflow is not None:
        # Anthropic's wording: clients recognize it and shorten the conversation.
        message = f"prompt is too long: {overflow.tokens} tokens > {overflow.maximum} maximum"
    kind = _KINDS.get(error.status_code, "api_error" if error.status_code >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id or None}
