"""Images on each surface: in the prompt of a model that takes them, or refused."""

import gc
import logging
import time
from typing import Any

import pytest
from image_cases import (
    BAD,
    CHAT,
    DAMAGED,
    GENERATE,
    GOOD,
    IMAGE,
    MESSAGES,
    MOST,
    OLLAMA,
    PARAMS,
    PLACEHOLDER,
    RESPONSES,
    ROWS,
    SURFACES,
    WIDE,
    FakeDecoder,
    SeeingTokenizer,
    bodies,
    chat_part,
    data_url,
    encoded,
    one_message,
    response_part,
    seeing_client,
    seeing_context,
)
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.body.route import INLINE_BYTES
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine
from tests.support.error_forms import error_message


def shown(image: str) -> str:
    """The text of an image in the prompt."""
    tile = PLACEHOLDER * ROWS
    return f"|11{tile}|12{tile}\n\n|whole{tile}|" if image == WIDE else f"|whole{tile}|"


@pytest.mark.parametrize("image", [GOOD, WIDE])
@pytest.mark.parametrize("path", SURFACES)
def test_an_image_is_in_the_prompt_at_the_positions_of_its_tiles(
    viewer: TestClient, engine: FakeEngine, path: str, image: str
) -> None:
    answer = viewer.post(path, json=bodies(image)[path])
    assert answer.status_code == 200, answer.text
    (request,) = engine.admitted
    text = f"user:{shown(image)}see\n" if path in (OLLAMA, "/api/generate") else f"user:see{shown(image)}\n"
    tokens = SeeingTokenizer().encode(text, add_special_tokens=path == GENERATE)
    assert list(request.prompt) == tokens
    starts = [at for at, token in enumerate(tokens) if token == IMAGE][::ROWS]
    found = [(placed.start, placed.tile.number) for placed in request.images]
    assert found == [*zip(starts, range(len(starts)), strict=True)]
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
    viewer: TestClient, engine: FakeEngine, path: str, counted: str
) -> None:
    body = bodies(WIDE)[path]
    viewer.post(path, json=body)
    answer = viewer.post(counted, json={name: body[name] for name in ("messages", "input") if name in body}).json()
    (count,) = (answer[name] for name in ("count", "input_tokens") if name in answer)
    assert count == len(engine.admitted[0].prompt)


def test_an_image_of_low_detail_is_not_split(viewer: TestClient, engine: FakeEngine) -> None:
    low = {"type": "image_url", "image_url": {"url": data_url(WIDE), "detail": "low"}}
    viewer.post(CHAT, json=one_message([low, chat_part(WIDE)]))
    viewer.post(RESPONSES, json={"input": [{"role": "user", "content": [{**response_part(WIDE), "detail": "low"}]}]})
    assert [len(request.images) for request in engine.admitted] == [1 + 3, 1]


@pytest.mark.parametrize("path", SURFACES)
def test_a_damaged_image_is_refused(viewer: TestClient, engine: FakeEngine, path: str) -> None:
    answer = viewer.post(path, json=bodies(BAD)[path])
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
    viewer: TestClient, path: str, part: dict[str, Any], code: str, message: str
) -> None:
    body = {"input": [{"role": "user", "content": [part]}]} if path == RESPONSES else one_message([part], max_tokens=2)
    answer = viewer.post(path, json=body)
    assert answer.status_code == 400
    field = "input" if path == RESPONSES else "messages"
    assert error_message(answer).startswith(f"Invalid value for '{field}[0].content[0]': {message}")
    if code:
        assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("role", ["system", "assistant", "tool", "user"])
def test_an_image_is_taken_in_each_role(viewer: TestClient, engine: FakeEngine, role: str) -> None:
    message = {"role": role, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, chat_part(GOOD)]}
    viewer.post(CHAT, json={"messages": [{"role": "user", "content": "x"}, message, {"role": "user", "content": "y"}]})
    (request,) = engine.admitted
    shows = bytes(token if token < 256 else ord("i") for token in request.prompt).decode()
    assert "a\nb" in shows
    assert "|wholeiii|" in shows


def test_images_that_cannot_fit_are_refused_before_they_are_decoded(engine: FakeEngine, decoder: FakeDecoder) -> None:
    context = seeing_context(engine, decoder)
    object.__setattr__(context.limits, "context_length", 2 * ROWS - 1)
    with seeing_client(context) as viewer:
        answer = viewer.post(CHAT, json=one_message([chat_part(GOOD)] * 2))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert decoder.calls == []


def test_the_context_length_counts_the_tokens_of_images(viewer: TestClient, engine: FakeEngine) -> None:
    text = {"type": "text", "text": "x" * 1985}
    assert viewer.post(CHAT, json=one_message([text])).status_code == 200
    answer = viewer.post(CHAT, json=one_message([text, chat_part(WIDE)]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert len(engine.admitted) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, one_message(f"a{PLACEHOLDER}")),
        (CHAT, one_message([{"type": "text", "text": PLACEHOLDER}, chat_part(GOOD)])),
        ("/v1/completions", {"prompt": f"a{PLACEHOLDER}"}),
        ("/v1/completions", {"prompt": [5, IMAGE]}),
        (GENERATE, {"text": "a", "image_data": GOOD}),
        (GENERATE, {"text": PLACEHOLDER * 2, "image_data": [GOOD]}),
    ],
)
def test_a_placeholder_without_an_image_is_refused(
    viewer: TestClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    answer = viewer.post(path, json=body)
    assert answer.status_code == 400
    hint = "Send one for each image" if path == GENERATE else "Remove it from the texts"
    assert hint in error_message(answer)
    assert engine.admitted == []


def test_texts_alone_are_written_by_a_template_that_takes_lists(viewer: TestClient, engine: FakeEngine) -> None:
    viewer.post(CHAT, json={"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]})
    assert bytes(engine.admitted[0].prompt) == b"system:a\nuser:b\n"


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("path", SURFACES)
def test_no_log_has_an_image(engine: FakeEngine, caplog: pytest.LogCaptureFixture, path: str, is_long: bool) -> None:
    caplog.set_level(logging.DEBUG)
    image = encoded("secret" * (INLINE_BYTES // 6 if is_long else 9))
    with seeing_client(seeing_context(engine, log_prompts=True)) as viewer:
        assert viewer.post(path, json=bodies(image)[path]).status_code == 200
    logged = "".join(str(record.__dict__) for record in caplog.records)
    assert "see" in logged
    assert image[:24] not in logged


def test_a_model_that_takes_images_shows_that(viewer: TestClient) -> None:
    assert viewer.post("/api/show", json={"model": MODEL}).json()["capabilities"] == ["completion", "vision"]
    (listed,) = viewer.get("/v1/models").json()["data"]
    assert listed["input_modalities"] == ["text", "image"]
    assert listed["image_limits"] == {"max_images": MOST, "max_file_bytes": 2**20, "max_body_bytes": 2**25}


def test_an_image_may_take_what_the_texts_of_a_body_leave(viewer: TestClient, engine: FakeEngine) -> None:
    image = encoded("x" * (3 << 20))
    for path, body in bodies(image).items():
        assert viewer.post(path, json=body).status_code == 200, path
    answer = viewer.post(CHAT, json=one_message([{"type": "text", "text": "x" * (3 << 20)}, chat_part(GOOD)]))
    assert answer.status_code == 413
    assert "without its images, the limit for this model's context length" in error_message(answer)
    assert len(engine.admitted) == len(SURFACES)


@pytest.mark.parametrize("length", [5, 1990])
def test_the_pixels_of_an_ended_request_are_free_without_a_collection_of_garbage(
    viewer: TestClient, engine: FakeEngine, decoder: FakeDecoder, length: int
) -> None:
    body = one_message([{"type": "text", "text": "x" * length}, chat_part(WIDE)], stream=True)
    gc.collect()
    gc.disable()
    try:
        assert viewer.post(CHAT, json=body).status_code == (200 if length == 5 else 400)
        engine.admitted.clear()
        assert len(decoder.made) == 3
        while any(tile() for tile in decoder.made):  # a thread may hold its last piece of work a moment longer
            time.sleep(0.001)
    finally:
        gc.enable()


def test_images_that_the_model_does_not_see_are_counted_by_code(viewer: TestClient, seeing: ApiContext) -> None:
    def refused(code: str) -> float | None:
        labels = {"model_name": MODEL, "code": code}
        return seeing.metrics.registry.get_sample_value("numaserve_images_refused_total", labels)

    seeing.metrics.images(found=0, computed=0, tower_seconds=0.0)
    assert viewer.post(CHAT, json=one_message([chat_part(BAD)])).status_code == 400
    assert refused("invalid_image") == 1
    url = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    turns = [("user", [url, chat_part(BAD)]), ("assistant", "yes"), ("user", [chat_part(GOOD)])]
    body = {"messages": [{"role": role, "content": content} for role, content in turns]}
    assert viewer.post(CHAT, json=body).status_code == 200
    assert [refused(code) for code in ("invalid_image", "image_url_unsupported")] == [2, 1]
    assert viewer.post(CHAT, json=one_message([chat_part(GOOD)] * (MOST + 1))).status_code == 400
    assert refused("too_many_images") == 1
    assert viewer.post(CHAT, json=one_message([chat_part(WIDE)] * MOST, max_tokens=1)).status_code == 200
    assert refused("too_many_images") == 1


def test_the_server_s_information_has_the_sizes_and_limits_of_images(viewer: TestClient) -> None:
    images = viewer.get("/server_info").json()["images"]
    assert (images["tile"], images["tile_tokens"], images["max_tiles"], images["max_images"]) == (8, ROWS, 5, MOST)
