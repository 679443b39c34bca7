"""Errors in Ollama's shape: ``{"error": "..."}``."""

from numaserve.server.http.errors import ApiError


def error_body(error: ApiError, _request_id: str = "") -> dict[str, object]:
    """The JSON object clients get, also as the last line of a stream that fails."""
    return {"error": error.message}
