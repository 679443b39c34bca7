"""Images of earlier turns and of tools never end a conversation: the model reads why, and a header names them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from image_cases import (
    BAD,
    CHAT,
    DAMAGED,
    GOOD,
    LEFT_OUT,
    MESSAGES,
    MOST,
    NOT_SHOWN,
    OLLAMA,
    PLACEHOLDER,
    RESPONSES,
    WIDE,
    FakeDecoder,
    SeeingTokenizer,
    block,
    bodies,
    chat_part,
    encoded,
    response_part,
    seeing_client,
    seeing_context,
)
from numaserve.server.answers.tools.formats import plain_format
from numaserve.server.app.application import ApiContext
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine


def turns(seeing: ApiContext) -> list[dict[str, Any]]:
    """The turns that the template was given last."""
    assert isinstance(seeing.tokenizer, SeeingTokenizer)
    return seeing.tokenizer.messages


def history(path: str, image: str, *, of_tool: bool) -> dict[str, Any]:
    """A conversation with an image in an earlier turn of the user or in the result of a tool."""
    said = {"role": "user", "content": "go on"}
    call = {"name": "look", "arguments": "{}"}
    earlier = {"role": "user", "content": "hi"}
    if path == RESPONSES:
        done = {"type": "function_call_output", "call_id": "1", "output": [response_part(image)]}
        calls = [{"type": "function_call", "call_id": "1", **call}, done]
        first = earlier if of_tool else {"role": "user", "content": [response_part(image)]}
        return {"input": [first, *calls] if of_tool else [first, {"role": "assistant", "content": "ok"}, said]}
    if path == MESSAGES:
        used = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [block(image)]}]}
        first = {"role": "user", "content": [block(image)]}
        answered = {"role": "assistant", "content": "ok"}
        return {"messages": [earlier, used, result] if of_tool else [first, answered, said], "max_tokens": 2}
    if path == OLLAMA:
        used = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
        result, first = ({"role": role, "content": "", "images": [image]} for role in ("tool", "user"))
        answered = {"role": "assistant", "content": "ok"}
        messages = [earlier, used, result] if of_tool else [first, answered, said]
        return {"model": MODEL, "stream": False, "messages": messages}
    used = {"role": "assistant", "tool_calls": [{"id": "1", "function": call}]}
    result = {"role": "tool", "tool_call_id": "1", "content": [chat_part(image)]}
    first = {"role": "user", "content": [chat_part(image)]}
    return {"messages": [earlier, used, result] if of_tool else [first, {"role": "assistant", "content": "ok"}, said]}


def test_a_placeholder_that_is_quoted_before_the_last_user_turn_is_text(engine: FakeEngine) -> None:
    arguments = json.dumps({"page": f"an {PLACEHOLDER} tag"})
    call = {"id": "1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    tool = {"type": "function", "function": {"name": "write", "description": f"writes {PLACEHOLDER} tags"}}
    quoted = [
        {"role": "system", "content": PLACEHOLDER},
        {"role": "user", "content": PLACEHOLDER},
        {"role": "assistant", "content": PLACEHOLDER, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": f"wrote {PLACEHOLDER}"},
    ]
    asked = {"role": "user", "content": [chat_part(GOOD)]}
    seeing = replace(seeing_context(engine), tool_format=plain_format())
    with seeing_client(seeing) as viewer:
        answer = viewer.post(CHAT, json={"messages": [*quoted, asked], "tools": [tool], "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    shown = json.dumps(turns(seeing))
    assert PLACEHOLDER not in shown
    assert shown.count(f"{PLACEHOLDER[0]} {PLACEHOLDER[1:]}") == 6


WHERE = {
    (CHAT, True): "messages[2].content[0]",
    (RESPONSES, True): "input[2].output[0]",
    (MESSAGES, True): "messages[2].content[0].content[0]",
    (OLLAMA, True): "messages[2].images",
    (CHAT, False): "messages[0].content[0]",
    (RESPONSES, False): "input[0].content[0]",
    (MESSAGES, False): "messages[0].content[0]",
    (OLLAMA, False): "messages[0].images",
}


@pytest.mark.parametrize(("path", "of_tool"), WHERE)
def test_an_old_image_never_ends_a_conversation(
    viewer: TestClient, engine: FakeEngine, path: str, of_tool: bool
) -> None:
    answer = viewer.post(path, json=history(path, BAD, of_tool=of_tool))
    assert answer.status_code == 200, answer.text
    assert answer.headers[LEFT_OUT] == f'1, "{WHERE[path, of_tool]}";reason=invalid_image'
    (request,) = engine.admitted
    text = bytes(token for token in request.prompt if token < 256).decode()
    assert f"{NOT_SHOWN} {DAMAGED}]" in text
    assert request.images == ()


@pytest.mark.parametrize(("path", "of_tool"), WHERE)
def test_an_old_image_that_can_be_used_is_shown(
    viewer: TestClient, engine: FakeEngine, path: str, of_tool: bool
) -> None:
    answer = viewer.post(path, json=history(path, GOOD, of_tool=of_tool))
    assert answer.status_code == 200, answer.text
    assert LEFT_OUT not in answer.headers
    assert [tile.digest for _, tile, _ in engine.admitted[0].images] == [GOOD.encode()]


def test_a_usable_image_stays_next_to_a_bad_one(viewer: TestClient, engine: FakeEngine, decoder: FakeDecoder) -> None:
    first = {
        "role": "user",
        "content": [chat_part(BAD), {"type": "image_url", "image_url": "http://x"}, chat_part(WIDE)],
    }
    last = {"role": "user", "content": [{"type": "text", "text": "b"}, chat_part(GOOD)]}
    body = {"messages": [first, {"role": "assistant", "content": "a"}, last], "cache_salt": "s"}
    answer = viewer.post(CHAT, json=body)
    assert answer.headers[LEFT_OUT] == (
        '2, "messages[0].content[0]";reason=invalid_image, "messages[0].content[1]";reason=image_url_unsupported'
    )
    assert [tile.digest.decode() for _, tile, _ in engine.admitted[0].images] == [WIDE] * 3 + [GOOD]
    assert [(calls, scope.salt) for calls, scope in decoder.calls] == [((BAD, WIDE, GOOD), "s")]


def test_the_last_turn_of_the_user_may_have_several_messages(viewer: TestClient) -> None:
    image, question = {"role": "user", "content": [chat_part(BAD)]}, {"role": "user", "content": "what is this?"}
    assert viewer.post(CHAT, json={"messages": [image, question]}).status_code == 400
    assert viewer.post(CHAT, json={"messages": [image, {"role": "assistant", "content": "a"}]}).status_code == 400


def test_the_oldest_images_beyond_the_limit_are_left_out(viewer: TestClient, engine: FakeEngine) -> None:
    old = {"role": "user", "content": [chat_part(encoded(f"old {index}")) for index in range(3)]}
    new = {"role": "user", "content": [chat_part(encoded(f"new {index}")) for index in range(MOST - 1)]}
    answer = viewer.post(CHAT, json={"messages": [old, {"role": "assistant", "content": "a"}, new]})
    assert answer.headers[LEFT_OUT].count("reason=too_many_images") == 2
    digests = [tile.digest.decode() for _, tile, _ in engine.admitted[0].images]
    assert digests == [encoded(name) for name in ("old 2", "new 0", "new 1", "new 2")]
    new["content"] = [chat_part(GOOD)] * (MOST + 1)
    answer = viewer.post(CHAT, json={"messages": [new]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_images")


def test_a_stored_response_has_no_images(viewer: TestClient, engine: FakeEngine, seeing: ApiContext) -> None:
    first = viewer.post(RESPONSES, json=bodies(GOOD)[RESPONSES]).json()
    items = viewer.get(f"{RESPONSES}/{first['id']}/input_items")
    assert GOOD not in items.text
    parts = items.json()["data"][0]["content"]
    assert parts[1] == {"type": "input_image", "detail": "auto", "image_url": None, "file_id": None}
    answer = viewer.post(RESPONSES, json={"input": "and now?", "previous_response_id": first["id"]})
    assert answer.headers[LEFT_OUT] == '1, "previous_response_id";reason=image_not_stored'
    assert f"see\n{NOT_SHOWN} The server does not store" in turns(seeing)[0]["content"][0]["text"]
    output = {"type": "function_call_output", "call_id": "1", "output": "b"}
    body = {"input": [output], "previous_response_id": first["id"]}
    assert viewer.post(RESPONSES, json=body).status_code == 200  # its last turn of the user is the stored one
