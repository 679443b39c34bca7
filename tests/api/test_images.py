"""Images on each surface: in the prompt of a model that takes them, refused, or replaced by a text for the model."""

import gc
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from image_cases import (
    BAD,
    DAMAGED,
    GOOD,
    IMAGE,
    MOST,
    PLACEHOLDER,
    ROWS,
    WIDE,
    FakeDecoder,
    SeeingTokenizer,
    data_url,
    encoded,
    seeing_client,
    seeing_context,
)
from numaserve.server.app.application import ApiContext
from numaserve.server.http.body.route import INLINE_BYTES
from starlette.testclient import TestClient

from tests.support.api_fakes import MODEL, FakeEngine
from tests.support.error_forms import error_message

CHAT, RESPONSES, MESSAGES, OLLAMA, GENERATE = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/generate",
)
LEFT_OUT = "X-Numaserve-Images-Left-Out"
NOT_SHOWN = "[An image, which this server does not show to the model."


def chat_part(image: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def response_part(image: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(image)}


def block(image: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}


def one_message(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


def bodies(image: str) -> dict[str, dict[str, Any]]:
    """A request of each surface with the text "see" and then an image, or where a field has images, before it."""
    text = {"type": "text", "text": "see"}
    ollama = {"model": MODEL, "stream": False}
    return {
        CHAT: one_message([text, chat_part(image)], max_tokens=2),
        RESPONSES: {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "see"}, response_part(image)]}]
        },
        MESSAGES: one_message([text, block(image)], max_tokens=2),
        OLLAMA: {**ollama, "messages": [{"role": "user", "content": "see", "images": [image]}]},
        "/api/generate": {**ollama, "prompt": "see", "images": [image]},
        GENERATE: {"text": f"user:see{PLACEHOLDER}\n", "image_data": image, "sampling_params": {"max_new_tokens": 2}},
    }


# The field that has the image.
PARAMS = {
    CHAT: "messages[0].content[1]",
    RESPONSES: "input[0].content[1]",
    MESSAGES: "messages[0].content[1]",
    OLLAMA: "messages[0].images",
    "/api/generate": "images",
    GENERATE: "image_data",
}
SURFACES = tuple(PARAMS)


@pytest.fixture
def decoder() -> FakeDecoder:
    return FakeDecoder()


@pytest.fixture
def seeing(engine: FakeEngine, decoder: FakeDecoder) -> ApiContext:
    return seeing_context(engine, decoder)


@pytest.fixture
def client(seeing: ApiContext) -> Iterator[TestClient]:
    with seeing_client(seeing) as client:
        yield client


def turns(seeing: ApiContext) -> list[dict[str, Any]]:
    """The turns that the template was given last."""
    assert isinstance(seeing.tokenizer, SeeingTokenizer)
    return seeing.tokenizer.messages


def shown(image: str) -> str:
    """The text of an image in the prompt."""
    tile = PLACEHOLDER * ROWS
    return f"|11{tile}|12{tile}\n\n|whole{tile}|" if image == WIDE else f"|whole{tile}|"


@pytest.mark.parametrize("image", [GOOD, WIDE])
@pytest.mark.parametrize("path", SURFACES)
def test_an_image_is_in_the_prompt_at_the_positions_of_its_tiles(
    client: TestClient, engine: FakeEngine, path: str, image: str
) -> None:
    answer = client.post(path, json=bodies(image)[path])
    assert answer.status_code == 200, answer.text
    (request,) = engine.admitted
    text = f"user:{shown(image)}see\n" if path in (OLLAMA, "/api/generate") else f"user:see{shown(image)}\n"
    tokens = SeeingTokenizer().encode(text, add_special_tokens=path == GENERATE)
    assert list(request.prompt) == tokens
    starts = [at for at, token in enumerate(tokens) if token == IMAGE][::ROWS]
    assert [(start, tile.number) for start, tile in request.images] == [*zip(starts, range(len(starts)), strict=True)]
    assert str(len(tokens)) in answer.text  # usage counts the tokens of the image


@pytest.mark.parametrize(
    ("path", "counted"),
    [
        (CHAT, "/tokenize"),
        (MESSAGES, "/v1/messages/count_tokens"),
        (RESPONSES, "/v1/responses/input_tokens"),
    ],
)
def test_the_tokens_of_an_image_are_counted_without_an_answer(
    client: TestClient, engine: FakeEngine, path: str, counted: str
) -> None:
    body = bodies(WIDE)[path]
    client.post(path, json=body)
    answer = client.post(counted, json={name: body[name] for name in ("messages", "input") if name in body}).json()
    (count,) = (answer[name] for name in ("count", "input_tokens") if name in answer)
    assert count == len(engine.admitted[0].prompt)


def test_an_image_of_low_detail_is_not_split(client: TestClient, engine: FakeEngine) -> None:
    low = {"type": "image_url", "image_url": {"url": data_url(WIDE), "detail": "low"}}
    client.post(CHAT, json=one_message([low, chat_part(WIDE)]))
    client.post(RESPONSES, json={"input": [{"role": "user", "content": [{**response_part(WIDE), "detail": "low"}]}]})
    assert [len(request.images) for request in engine.admitted] == [1 + 3, 1]


@pytest.mark.parametrize("path", SURFACES)
def test_a_damaged_image_is_refused(client: TestClient, engine: FakeEngine, path: str) -> None:
    answer = client.post(path, json=bodies(BAD)[path])
    assert answer.status_code == 400
    assert error_message(answer) == f"Invalid value for '{PARAMS[path]}': {DAMAGED}"
    assert engine.admitted == []


NO_FETCHING = "The server does not fetch images. Send the image itself as a data URL, 'data:image/png;base64,...'."
UNSERVED: list[tuple[str, dict[str, Any], str, str]] = [
    *(
        (CHAT, {"type": "image_url", "image_url": {"url": url}}, "image_url_unsupported", NO_FETCHING)
        for url in ("http://x/y.png", "HTTPS://x", "file:///etc/passwd", "ftp://x", "/etc/passwd", "x")
    ),
    (RESPONSES, {"type": "input_image", "image_url": "https://x"}, "image_url_unsupported", NO_FETCHING),
    (RESPONSES, {"type": "input_image", "file_id": "f"}, "image_url_unsupported", "The server does not store files."),
    (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://x"}}, "", NO_FETCHING),
    (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "f"}}, "", "The server does not store files."),
    (CHAT, {"type": "image_url", "image_url": "data:text/plain;base64,AA=="}, "invalid_image", "The data URL has no"),
    (CHAT, {"type": "image_url", "image_url": "data:image/png,AA"}, "invalid_image", "The data URL has no image in"),
    (
        CHAT,
        {"type": "image_url", "image_url": "data:image/png;base64,\u00e9"},
        "invalid_image",
        "The image is not valid",
    ),
    (CHAT, {"type": "image_url", "image_url": {"url": 5}}, "invalid_image", "There is no image in this part."),
    (CHAT, {"type": "image", "source": {}}, "invalid_image", "There is no image in this part."),
    (MESSAGES, {"type": "image_url", "image_url": {"url": data_url()}}, "", "There is no image in this part."),
]


@pytest.mark.parametrize(("path", "part", "code", "message"), UNSERVED)
def test_what_is_no_image_is_answered_with_what_to_send(
    client: TestClient, path: str, part: dict[str, Any], code: str, message: str
) -> None:
    body = {"input": [{"role": "user", "content": [part]}]} if path == RESPONSES else one_message([part], max_tokens=2)
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    field = "input" if path == RESPONSES else "messages"
    assert error_message(answer).startswith(f"Invalid value for '{field}[0].content[0]': {message}")
    if code:
        assert answer.json()["error"]["code"] == code


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
    client: TestClient, engine: FakeEngine, path: str, of_tool: bool
) -> None:
    answer = client.post(path, json=history(path, BAD, of_tool=of_tool))
    assert answer.status_code == 200, answer.text
    assert answer.headers[LEFT_OUT] == f'1, "{WHERE[path, of_tool]}";reason=invalid_image'
    (request,) = engine.admitted
    text = bytes(token for token in request.prompt if token < 256).decode()
    assert f"{NOT_SHOWN} {DAMAGED}]" in text
    assert request.images == ()


@pytest.mark.parametrize(("path", "of_tool"), WHERE)
def test_an_old_image_that_can_be_used_is_shown(
    client: TestClient, engine: FakeEngine, path: str, of_tool: bool
) -> None:
    answer = client.post(path, json=history(path, GOOD, of_tool=of_tool))
    assert answer.status_code == 200, answer.text
    assert LEFT_OUT not in answer.headers
    assert [tile.digest for _, tile in engine.admitted[0].images] == [GOOD.encode()]


def test_a_usable_image_stays_next_to_a_bad_one(client: TestClient, engine: FakeEngine, decoder: FakeDecoder) -> None:
    first = {
        "role": "user",
        "content": [chat_part(BAD), {"type": "image_url", "image_url": "http://x"}, chat_part(WIDE)],
    }
    last = {"role": "user", "content": [{"type": "text", "text": "b"}, chat_part(GOOD)]}
    body = {"messages": [first, {"role": "assistant", "content": "a"}, last], "cache_salt": "s"}
    answer = client.post(CHAT, json=body)
    assert answer.headers[LEFT_OUT] == (
        '2, "messages[0].content[0]";reason=invalid_image, "messages[0].content[1]";reason=image_url_unsupported'
    )
    assert [tile.digest.decode() for _, tile in engine.admitted[0].images] == [WIDE] * 3 + [GOOD]
    assert [(calls, scope.salt) for calls, scope in decoder.calls] == [((BAD, WIDE, GOOD), "s"), ((WIDE, GOOD), "s")]


def test_the_last_turn_of_the_user_may_have_several_messages(client: TestClient) -> None:
    image, question = {"role": "user", "content": [chat_part(BAD)]}, {"role": "user", "content": "what is this?"}
    assert client.post(CHAT, json={"messages": [image, question]}).status_code == 400
    assert client.post(CHAT, json={"messages": [image, {"role": "assistant", "content": "a"}]}).status_code == 400


@pytest.mark.parametrize("role", ["system", "assistant", "tool", "user"])
def test_an_image_is_taken_in_each_role(client: TestClient, engine: FakeEngine, role: str) -> None:
    message = {"role": role, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, chat_part(GOOD)]}
    client.post(CHAT, json={"messages": [{"role": "user", "content": "x"}, message, {"role": "user", "content": "y"}]})
    (request,) = engine.admitted
    shows = bytes(token if token < 256 else ord("i") for token in request.prompt).decode()
    assert "a\nb" in shows
    assert "|wholeiii|" in shows


def test_the_oldest_images_beyond_the_limit_are_left_out(client: TestClient, engine: FakeEngine) -> None:
    old = {"role": "user", "content": [chat_part(encoded(f"old {index}")) for index in range(3)]}
    new = {"role": "user", "content": [chat_part(encoded(f"new {index}")) for index in range(MOST - 1)]}
    answer = client.post(CHAT, json={"messages": [old, {"role": "assistant", "content": "a"}, new]})
    assert answer.headers[LEFT_OUT].count("reason=too_many_images") == 2
    digests = [tile.digest.decode() for _, tile in engine.admitted[0].images]
    assert digests == [encoded(name) for name in ("old 2", "new 0", "new 1", "new 2")]
    new["content"] = [chat_part(GOOD)] * (MOST + 1)
    answer = client.post(CHAT, json={"messages": [new]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_images")


def test_images_that_cannot_fit_are_refused_before_they_are_decoded(engine: FakeEngine, decoder: FakeDecoder) -> None:
    context = seeing_context(engine, decoder)
    object.__setattr__(context.limits, "context_length", 2 * ROWS - 1)
    with seeing_client(context) as client:
        answer = client.post(CHAT, json=one_message([chat_part(GOOD)] * 2))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert decoder.calls == []


def test_the_context_length_counts_the_tokens_of_images(client: TestClient, engine: FakeEngine) -> None:
    text = {"type": "text", "text": "x" * 1985}
    assert client.post(CHAT, json=one_message([text])).status_code == 200
    answer = client.post(CHAT, json=one_message([text, chat_part(WIDE)]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert len(engine.admitted) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, one_message(f"a{PLACEHOLDER}")),
        (CHAT, one_message([{"type": "text", "text": PLACEHOLDER}, chat_part(GOOD)])),
        (MESSAGES, one_message("x", max_tokens=2, system=PLACEHOLDER)),
        ("/v1/completions", {"prompt": f"a{PLACEHOLDER}"}),
        ("/v1/completions", {"prompt": [5, IMAGE]}),
        (GENERATE, {"text": "a", "image_data": GOOD}),
        (GENERATE, {"text": PLACEHOLDER * 2, "image_data": [GOOD]}),
    ],
)
def test_a_placeholder_without_an_image_is_refused(
    client: TestClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    hint = "Send one for each image" if path == GENERATE else "Remove it from the texts"
    assert hint in error_message(answer)
    assert engine.admitted == []


def test_texts_alone_are_written_by_a_template_that_takes_lists(client: TestClient, engine: FakeEngine) -> None:
    client.post(CHAT, json={"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]})
    assert bytes(engine.admitted[0].prompt) == b"system:a\nuser:b\n"


def test_a_stored_response_has_no_images(client: TestClient, engine: FakeEngine, seeing: ApiContext) -> None:
    first = client.post(RESPONSES, json=bodies(GOOD)[RESPONSES]).json()
    items = client.get(f"{RESPONSES}/{first['id']}/input_items")
    assert GOOD not in items.text
    parts = items.json()["data"][0]["content"]
    assert parts[1] == {"type": "input_image", "detail": "auto", "image_url": None, "file_id": None}
    answer = client.post(RESPONSES, json={"input": "and now?", "previous_response_id": first["id"]})
    assert answer.headers[LEFT_OUT] == '1, "previous_response_id";reason=image_not_stored'
    assert f"see\n{NOT_SHOWN} The server does not store" in turns(seeing)[0]["content"][0]["text"]
    output = {"type": "function_call_output", "call_id": "1", "output": "b"}
    body = {"input": [output], "previous_response_id": first["id"]}
    assert client.post(RESPONSES, json=body).status_code == 200  # its last turn of the user is the stored one


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("path", SURFACES)
def test_no_log_has_an_image(engine: FakeEngine, caplog: pytest.LogCaptureFixture, path: str, is_long: bool) -> None:
    caplog.set_level(logging.DEBUG)
    image = encoded("secret" * (INLINE_BYTES // 6 if is_long else 9))
    with seeing_client(seeing_context(engine, log_prompts=True)) as client:
        assert client.post(path, json=bodies(image)[path]).status_code == 200
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "see" in logged
    assert image[:24] not in logged


def test_a_model_that_takes_images_shows_that(client: TestClient) -> None:
    assert client.post("/api/show", json={"model": MODEL}).json()["capabilities"] == ["completion", "vision"]
    (listed,) = client.get("/v1/models").json()["data"]
    assert listed["input_modalities"] == ["text", "image"]
    assert listed["image_limits"] == {"max_images": MOST, "max_file_bytes": 2**20, "max_body_bytes": 2**25}


def test_an_image_may_take_what_the_texts_of_a_body_leave(client: TestClient, engine: FakeEngine) -> None:
    image = encoded("x" * (3 << 20))
    for path, body in bodies(image).items():
        assert client.post(path, json=body).status_code == 200, path
    answer = client.post(CHAT, json=one_message([{"type": "text", "text": "x" * (3 << 20)}, chat_part(GOOD)]))
    assert answer.status_code == 413
    assert "without its images, the limit for this model's context length" in error_message(answer)
    assert len(engine.admitted) == len(SURFACES)


@pytest.mark.parametrize("length", [5, 1990])
def test_the_pixels_of_an_ended_request_are_free_without_a_collection_of_garbage(
    client: TestClient, engine: FakeEngine, decoder: FakeDecoder, length: int
) -> None:
    body = one_message([{"type": "text", "text": "x" * length}, chat_part(WIDE)], stream=True)
    gc.collect()
    gc.disable()
    try:
        assert client.post(CHAT, json=body).status_code == (200 if length == 5 else 400)
        engine.admitted.clear()
        assert len(decoder.made) == 3
        while any(tile() for tile in decoder.made):  # a thread may hold its last piece of work a moment longer
            time.sleep(0.001)
    finally:
        gc.enable()
