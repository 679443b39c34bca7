"""The forms in which surfaces answer errors, and what was behind an answer."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from httpx import Response
from numaserve.server.http.errors import ApiError
from starlette.exceptions import HTTPException


class Form(NamedTuple):
    """The form of one surface's errors."""

    schema: str  # its name in the OpenAPI document
    message: Callable[[Any], str]  # takes a body of this form; raises AssertionError for another


def _openai(body: Any) -> str:
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return str(body["error"]["message"])


def _ollama(body: Any) -> str:
    assert set(body) == {"error"}
    return str(body["error"])


def _anthropic(body: Any) -> str:
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"]
    assert set(body["error"]) == {"type", "message"}
    return str(body["error"]["message"])


def _cohere(body: Any) -> str:
    assert set(body) == {"id", "message"}
    assert body["id"]
    return str(body["message"])


def _tei(body: Any) -> str:
    assert set(body) == {"error", "error_type"}
    assert body["error_type"] in {"Backend", "Empty", "Overloaded", "Tokenizer", "Unhealthy", "Validation"}
    return str(body["error"])


# By the beginning of a path; the longest one counts.
_FORMS = {
    "/": Form("Error", _openai),
    "/v1/messages": Form("AnthropicError", _anthropic),
    "/api/": Form("OllamaError", _ollama),
    "/v2/embed": Form("CohereError", _cohere),
    "/v2/rerank": Form("CohereError", _cohere),
    "/rerank": Form("TeiError", _tei),
    "/embed": Form("TeiError", _tei),
    "/embed_sparse": Form("TeiError", _tei),
    "/predict": Form("TeiError", _tei),
}


def form_of(path: str) -> Form:
    """The form that errors of `path` have."""
    return _FORMS[max((prefix for prefix in _FORMS if f"{path}/".startswith(prefix.rstrip("/") + "/")), key=len)]


def error_message(answer: Response) -> str:
    """The message of an error, which has to be in the form that is right for the path it answers."""
    message = form_of(answer.request.url.path).message(answer.json())
    assert message
    assert "Traceback" not in message
    return message


def note_errors(app: FastAPI) -> list[ApiError]:
    """The errors that `app` answers from its first request on: not every form has room for a code and a field."""
    noted: list[ApiError] = []
    answer = app.exception_handlers[HTTPException]

    async def note(request: Request, error: Any) -> Any:
        noted.extend([error] if isinstance(error, ApiError) else [])
        return await answer(request, error)

    app.add_exception_handler(HTTPException, note)
    return noted
