"""Errors in OpenAI's format: ``{"error": {"message", "type", "param", "code"}}``."""

from numaserve.server.http.errors import ApiError


def error_body(error: ApiError, _request_id: str = "") -> dict[str, object]:
    """Return the JSON object for clients; it is also sent as an event in the middle of a stream."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}
