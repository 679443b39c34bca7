"""A request never makes the server ask another machine, or read a file, whatever place it names and in which field."""

import socket
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
from numaserve.server.app.decode_main import MODELS
from numaserve.server.http.fields.types import Strict
from whole_answers import TestClient

from tests.support.app_routes import WITH_BODIES, operations

PLACES = [
    *(
        "http://127.0.0.1:1/x.png",
        "https://example.com/x.png",
        "file:///etc/passwd",
        "ftp://127.0.0.1:1/x",
        "//127.0.0.1/x",
    ),
    *("gopher://127.0.0.1:1/", "data:image/png;base64,AA==", "unix:/run/x", "HTTP://[::1]:1/", "/etc/passwd"),
]
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
PARTS: list[tuple[str, str, Any]] = [
    (CHAT, "messages", {"type": "image_url", "image_url": {"url": "PLACE"}}),
    (CHAT, "messages", {"type": "video_url", "video_url": {"url": "PLACE"}}),
    (CHAT, "messages", {"type": "file", "file": {"file_data": "PLACE"}}),
    (RESPONSES, "input", {"type": "input_image", "image_url": "PLACE"}),
    (RESPONSES, "input", {"type": "input_file", "file_url": "PLACE"}),
    (MESSAGES, "messages", {"type": "image", "source": {"type": "url", "url": "PLACE"}}),
    (MESSAGES, "messages", {"type": "document", "source": {"type": "url", "url": "PLACE"}}),
]


def model_of(method: str, path: str) -> type[Strict]:
    """Return the model of a route's body."""
    content = operations()[method, path]["requestBody"]["content"]
    return MODELS[content["application/json"]["schema"]["$ref"].rpartition("/")[2]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Whom the process wanted to reach."""
    wanted: list[object] = []

    def refuse(*to: object, **_: object) -> None:
        wanted.append(to)
        raise OSError("a test forbids it")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield wanted
    assert wanted == []


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("place", PLACES)
def test_what_lies_elsewhere_is_refused(shared_client: TestClient, place: str) -> None:
    for path, field, part in PARTS:
        written = {key: _placed(value, place) for key, value in part.items()}
        body = {field: [{"role": "user", "content": [written]}], "max_tokens": 4}
        answer = shared_client.post(path, json=body if path != RESPONSES else {field: body[field]})
        assert answer.status_code == 400, (path, part)
        assert "content[0]" in answer.text
    body = {"messages": [{"role": "user", "content": "x", "images": [place]}], "stream": False}
    assert shared_client.post(OLLAMA, json=body).status_code == 400


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("method", "path"), WITH_BODIES)
def test_no_field_of_any_route_is_a_place_to_go_to(shared_client: TestClient, method: str, path: str) -> None:
    model = model_of(method, path)
    forms = cycle((PLACES[0], [PLACES[0]], {"url": PLACES[0]}, [{"$ref": PLACES[2]}]))
    for name in [*model.model_fields, "image_data", "image_url", "url", "file", "lora_path", "model_path"]:
        assert shared_client.request(method, path, json={name: next(forms)}).status_code < 500


def _placed(value: Any, place: str) -> Any:
    if isinstance(value, dict):
        return {key: _placed(each, place) for key, each in value.items()}
    return value.replace("PLACE", place) if isinstance(value, str) else value
