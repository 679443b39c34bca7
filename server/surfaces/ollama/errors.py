"""Errors in Ollama's format: ``{"error": "..."}``."""

from numaserve.server.http.errors import ApiError


def error_body(error: ApiError, _request_id: str = "") -> dict[str, object]:
    """Return the JSON object for clients; it is also sent as the last line of a stream that fails."""
    return {"error": error.message}
