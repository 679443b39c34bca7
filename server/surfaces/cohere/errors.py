"""Errors in Cohere's format: ``{"id", "message"}``."""

from numaserve.server.http.errors import ApiError


def error_body(error: ApiError, request_id: str = "") -> dict[str, object]:
    """Return the JSON object for clients."""
    return {"id": request_id, "message": error.message}
