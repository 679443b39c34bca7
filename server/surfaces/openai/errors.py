"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from numaserve.server.http.errors import ApiError


def error_body(error: ApiError, _request_id: str = "") -> dict[str, object]:
    """The JSON object clients get, also as an event in the middle of a stream."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}
