"""Errors in the format of text-embeddings-inference: ``{"error", "error_type"}``."""

from numaserve.server.http.errors import ApiError

_BY_CODE = {"empty_prompt": "Empty", "tokenizer_failed": "Tokenizer"}
_BY_STATUS = {429: "Overloaded", 503: "Unhealthy"}


def error_body(error: ApiError, _request_id: str = "") -> dict[str, object]:
    """Return the JSON object for clients."""
    default = "Backend" if error.status_code >= 500 else "Validation"
    kind = _BY_CODE.get(error.code or "") or _BY_STATUS.get(error.status_code, default)
    return {"error": error.message, "error_type": kind}
