"""The bounds of lists within a message or an item, which random requests leave out."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from numaserve.server.app.application import create_app
from openapi_cases import long_lists_within
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.app_routes import document

MOST = 16384
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TEXT, THOUGHT = {"type": "text", "text": ""}, {"type": "summary_text", "text": ""}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
ITEM_OF_CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
QUESTION = {"type": "message", "role": "user", "content": "x"}


def messages(*turns: list[dict[str, Any]]) -> dict[str, Any]:
    roles = ("user", "assistant", "user")
    return {"messages": [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]}


FOUND = {"type": "search_result", "source": "u", "title": "f"}


def document_of(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "content", "content": blocks}}


# What has the list, by the name of its description and its field's; and a body with that list.
LISTS: dict[tuple[str, str], tuple[str, Callable[[int], dict[str, Any]]]] = {
    ("InputMessage", "content"): (MESSAGES, lambda n: messages([TEXT] * n)),
    ("ToolResultBlock", "content"): (
        MESSAGES,
        lambda n: messages([TEXT], [CALL], [{"type": "tool_result", "tool_use_id": "a", "content": [TEXT] * n}]),
    ),
    ("ContentSource", "content"): (MESSAGES, lambda n: messages([document_of([TEXT] * n)])),
    ("SearchResultBlock", "content"): (MESSAGES, lambda n: messages([{**FOUND, "content": [TEXT] * n}])),
    ("MessageItem", "content"): (RESPONSES, lambda n: {"input": [{**QUESTION, "content": [TEXT] * n}]}),
    ("FunctionOutputItem", "output"): (
        RESPONSES,
        lambda n: {"input": [ITEM_OF_CALL, {"type": "function_call_output", "call_id": "a", "output": [TEXT] * n}]},
    ),
    ("ReasoningItem", "summary"): (
        RESPONSES,
        lambda n: {"input": [QUESTION, {"type": "reasoning", "summary": [THOUGHT] * n}]},
    ),
    ("ReasoningItem", "content"): (
        RESPONSES,
        lambda n: {"input": [QUESTION, {"type": "reasoning", "summary": [], "content": [THOUGHT] * n}]},
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Of a context in which so many parts have room."""
    context = make_context(FakeEngine(), context_length=2**17, max_body_bytes=2**22)
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("place", LISTS, ids="-".join)
def test_more_parts_than_any_message_has_are_refused(client: TestClient, place: tuple[str, str]) -> None:
    path, body = LISTS[place]
    assert client.post(path, json={"max_tokens": 1, **body(MOST)}).status_code == 200
    refused = client.post(path, json={"max_tokens": 1, **body(MOST + 1)})
    assert refused.status_code == 400
    assert place[1] in refused.text
    assert str(MOST) in refused.text


def test_every_long_list_that_random_requests_leave_out_is_tried() -> None:
    assert {(name, field) for name, field, _ in long_lists_within(document())} == set(LISTS)
