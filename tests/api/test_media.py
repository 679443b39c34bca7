"""Input other than text is refused as what it is, on each surface in its own form of errors."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.api_fakes import MODEL, FakeEngine
from tests.support.error_forms import error_message

DATA = "data:image/png;base64,AA=="
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
# Path, part of a user's message, and the name of what it is.
PARTS: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"type": "image_url", "image_url": {"url": DATA}}, "images"),
    (CHAT, {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, "audio"),
    (CHAT, {"type": "audio_url", "audio_url": {"url": DATA}}, "audio"),
    (CHAT, {"type": "video_url", "video_url": {"url": DATA}}, "videos"),
    (CHAT, {"type": "file", "file": {"file_data": DATA}}, "files"),
    (RESPONSES, {"type": "input_image", "image_url": DATA}, "images"),
    (RESPONSES, {"type": "input_audio", "input_audio": {}}, "audio"),
    (RESPONSES, {"type": "input_video", "video_url": DATA}, "videos"),
    (RESPONSES, {"type": "input_file", "file_data": DATA}, "files"),
    (MESSAGES, {"type": "image", "source": SOURCE}, "images"),
    (MESSAGES, {"type": "document", "source": SOURCE}, "non-text documents"),
    (MESSAGES, {"type": "container_upload", "file_id": "f"}, "files"),
    # Of another surface: clients confuse them.
    (MESSAGES, {"type": "image_url", "image_url": {"url": DATA}}, "images"),
    (CHAT, {"type": "image", "source": SOURCE}, "images"),
]
TURN = {"role": "user", "content": "x"}
# Path, body, the field to blame, and the name of what it is.
FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("/api/chat", {"model": MODEL, "messages": [TURN | {"images": ["AA=="]}]}, "messages[0].images", "images"),
    ("/api/generate", {"model": MODEL, "prompt": "x", "images": ["AA=="]}, "images", "images"),
    ("/generate", {"text": "x", "image_data": DATA}, "image_data", "images"),
    ("/generate", {"text": "x", "audio_data": ["x"]}, "audio_data", "audio"),
    ("/generate", {"text": "x", "video_data": ["x"]}, "video_data", "videos"),
    (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio", "audio"),
    ("/tokenize", {"messages": [{"role": "user", "content": [PARTS[0][1]]}]}, "messages[0].content[0]", "images"),
    ("/v1/embeddings", {"input": [{"image": DATA}]}, "input", "images"),
    ("/v1/embeddings", {"input": {"video": DATA}}, "input", "videos"),
    ("/v1/rerank", {"query": "x", "documents": ["y", {"image": DATA}]}, "documents[1]", "images"),
    ("/v1/rerank", {"query": "x", "documents": [{"text": "y", "image": DATA}]}, "documents[0]", "images"),
]


def body_of(path: str, content: object) -> dict[str, Any]:
    turns = [{"role": "user", "content": content}]
    return {"input": turns} if path == RESPONSES else {"messages": turns, "max_tokens": 4}


def said(client: TestClient, engine: FakeEngine, path: str, body: dict[str, Any]) -> str:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert engine.admitted == []
    return error_message(answer)


@pytest.mark.parametrize(("path", "part", "kind"), PARTS)
def test_a_part_that_is_no_text_is_named_and_said_what_to_do_with(
    client: TestClient, engine: FakeEngine, path: str, part: dict[str, Any], kind: str
) -> None:
    field = "input" if path == RESPONSES else "messages"
    where = f"{field}[0].content[1]" + (".source" if part["type"] == "document" else "")
    text = {"type": "input_text" if path == RESPONSES else "text", "text": "What is this?"}
    assert said(client, engine, path, body_of(path, [text, part])) == (
        f"Invalid value for '{where}': this model does not accept {kind}, only text; leave this out or describe the"
        " content in text."
    )


@pytest.mark.parametrize(("path", "body", "param", "kind"), FIELDS)
def test_a_field_that_carries_no_text_is_named(
    client: TestClient, engine: FakeEngine, path: str, body: dict[str, Any], param: str, kind: str
) -> None:
    message = said(client, engine, path, body)
    assert message.startswith(
        f"Invalid value for '{param}': this model does not accept {kind}, only text; leave this out"
    )


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_part_that_nobody_knows_is_answered_with_the_types_that_are_served(
    client: TestClient, engine: FakeEngine, path: str
) -> None:
    message = said(client, engine, path, body_of(path, [{"type": "smell"}]))
    assert "the type is not supported; supported types are " in message
    assert "smell" not in message
