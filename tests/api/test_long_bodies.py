"""Bodies too long to be decoded in the event loop: what is refused before, and that the process decodes as the loop."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from numaserve.server.app.application import ApiContext, create_app
from numaserve.server.app.decode_main import MODELS
from numaserve.server.confined.child_process import ChildProcess
from numaserve.server.engine.types import NotReady
from numaserve.server.http.body.decode import from_data
from numaserve.server.http.body.names_model import NamesModel
from numaserve.server.http.body.need import MAX_CONTAINERS, BodyNeed, count_values
from numaserve.server.http.body.opaque import TakenOut
from numaserve.server.http.body.pieces import CHARACTERS, MOST_WEIGHT, Piece, Pieces, put_together
from numaserve.server.http.body.process import DecodingProcess
from numaserve.server.http.body.route import INLINE_BYTES, INLINE_VALUES
from numaserve.server.http.errors import ApiError
from numaserve.server.http.fields.types import Strict
from numaserve.server.http.limits import ApiLimits
from numaserve.server.structured.json_text import levels
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.surfaces.openai.completion_schema import CompletionRequest
from numaserve.server.surfaces.vllm.tokenize_schema import DetokenizeRequest
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context
from tests.support.app_routes import operations
from tests.support.byte_tokenizer import VOCAB
from tests.support.error_forms import error_message

LONG = "x" * INLINE_BYTES
MANY = INLINE_VALUES * 2
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi", "store": False, "tools": [], "tool_choice": "none"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "thinking": {"type": "enabled"}},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}], "system": "be kind"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def context(engine: FakeEngine) -> ApiContext:
    return make_context(engine, max_body_bytes=2**25)


@pytest.fixture(scope="module")
def client(context: ApiContext) -> Iterator[TestClient]:
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield client
    context.close()


def post(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("path", BODIES)
def test_a_long_body_is_answered_as_a_short_one(client: TestClient, path: str) -> None:
    short = post(client, path, BODIES[path])
    long = post(client, path, {**BODIES[path], "filler": LONG})
    assert (short.status_code, long.status_code) == (200, 200)
    changing = {"id", "created", "created_at", "output"}
    assert {k: v for k, v in short.json().items() if k not in changing} == {
        k: v for k, v in long.json().items() if k not in changing
    }
    assert long.headers["X-Numaserve-Ignored"] == "1, filler"


@pytest.mark.parametrize("path", ["/tokenize", "/api/chat"])
def test_a_conversation_that_may_be_left_out_is_one_in_a_long_body_too(
    client: TestClient, engine: FakeEngine, path: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": False, "filler": LONG}
    answer = post(client, path, body).json()
    assert answer["tokens" if path == "/tokenize" else "message"]


def test_every_field_of_a_long_body_reaches_the_engine(client: TestClient, engine: FakeEngine) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 4,
        "seed": 9,
        "logit_bias": {"5": -100, "6": 1.5},
        "stop": ["a", "b"],
        "stop_token_ids": [7],
        "max_tokens": 5,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": True},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    }
    del engine.admitted[:]
    for body in (fields, {**fields, "filler": LONG}):
        assert '"usage":{' in post(client, "/v1/chat/completions", body).text
    short, long = engine.admitted[:2], engine.admitted[2:]
    assert [(r.prompt, r.sampling, r.stop, r.stop_token_ids, r.max_new_tokens) for r in short] == [
        (r.prompt, r.sampling, r.stop, r.stop_token_ids, r.max_new_tokens) for r in long
    ]


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}),
    ("/v1/chat/completions", {"temperature": 9}),
    ("/v1/chat/completions", {"max_token": 9}),
    ("/v1/chat/completions", {"logit_bias": {str(index): 1 for index in range(MANY)}}),
    ("/v1/chat/completions", {"metadata": {str(index): "" for index in range(MANY)}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}),
    ("/v1/completions", {"prompt": [["x"]]}),
    ("/v1/completions", {"prompt": [[1]] * 2 * MANY}),
    ("/detokenize", {"tokens": [-1]}),
]


@pytest.mark.parametrize(("path", "fields"), WRONG)
def test_what_is_wrong_with_a_long_body_is_told_as_of_a_short_one(
    client: TestClient, path: str, fields: dict[str, Any]
) -> None:
    short = post(client, path, {**BODIES[path], **fields})
    long = post(client, path, {**BODIES[path], **fields, "filler": LONG})
    assert (short.status_code, long.status_code) == (400, 400)
    assert short.json() == long.json()


def test_a_long_body_that_is_no_json_is_refused(client: TestClient) -> None:
    for content in (b"[" * MANY, b'{"a": "' + LONG.encode(), b"\xff" * len(LONG)):
        answer = client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "The body is not valid JSON."


# Each process that collects tests has these tables: only a test makes what is long.
HOSTILE: dict[str, Callable[[], bytes]] = {
    "unknown fields": lambda: b"{" + b",".join(b'"f%d":1' % index for index in range(1 << 20)) + b"}",
    "empty lists": lambda: b'{"x":[' + b",".join([b"[]"] * (1 << 20)) + b"]}",
    "one-token prompts": lambda: b'{"prompt":[' + b",".join([b"[1]"] * (1 << 20)) + b"]}",
    "token ids": lambda: b'{"tokens":[' + b",".join([b"1"] * (1 << 21)) + b"]}",
    "one long text": lambda: b'{"prompt":"' + b"x" * (20 << 20) + b'"}',
}


@pytest.mark.spread("kind")
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("kind", HOSTILE)
def test_more_than_the_context_can_need_is_refused_before_it_is_decoded(
    client: TestClient, path: str, kind: str
) -> None:
    answer = client.post(path, content=HOSTILE[kind](), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "the limit for this model's context length" in error_message(answer)


LONGEST = "x" * 2 * CHARACTERS * MOST_WEIGHT
WHOLES: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "a text": lambda: {"a": LONGEST, "b": [1]},
    "long texts": lambda: {"a": ["x" * CHARACTERS * 1000] * 40, "b": "x"},
    "a flat list": lambda: {"a": 1, "b": list(range(3 * MOST_WEIGHT)), "c": [2]},
    "lists of lists": lambda: {"a": [list(range(size)) for size in (3, 2 * MOST_WEIGHT, 0, MOST_WEIGHT, 9)]},
    "many short lists": lambda: {"a": [[index, []] for index in range(MOST_WEIGHT)]},
    "many names": lambda: {
        "a": {str(index): {"b": [index]} for index in range(MOST_WEIGHT)},
        **BODIES["/v1/messages"],
    },
    "a deep list": lambda: {"a": [[[[{"b": [[list(range(2 * MOST_WEIGHT))], 1]}]]], None]},
}


def weight(items: object) -> int:
    values = [item for level in levels(items) for item in level]
    return len(values) - 1 + sum(len(item) // CHARACTERS for item in values if isinstance(item, str))


@pytest.mark.parametrize("kind", WHOLES)
def test_data_is_put_together_from_pieces_of_which_none_is_large(kind: str) -> None:
    whole = WHOLES[kind]()
    pieces = list(Pieces(whole))
    assert all(weight(piece.items) <= MOST_WEIGHT or piece.items == {"a": LONGEST} for piece in pieces)
    sent = [msgspec.json.decode(msgspec.json.encode(piece), type=Piece) for piece in pieces]
    assert put_together(sent) == whole
    assert list(put_together(sent)) == list(whole)


def test_objects_and_lists_are_counted_and_texts_are_not_looked_into() -> None:
    assert Pieces({"a[{": ["\\", '"[', "\n{"], "b": [[], "é{", {"\\": {}}]}).containers == 6


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pieces that come from another process."""
    received: list[int] = []
    receive = ChildProcess.receive

    def measured(process: ChildProcess, size: int, deadline: float) -> bytes:
        received.append(size)
        return receive(process, size, deadline)

    monkeypatch.setattr(ChildProcess, "receive", measured)
    return received


async def test_nothing_large_is_decoded_at_once_in_the_servers_own_process(sizes: list[int]) -> None:
    prompt, process = [list(range(10000, 10000 + 16 * MOST_WEIGHT))], DecodingProcess()
    try:
        data = json.dumps({"prompt": prompt}).encode()
        assert (await process.decode(CompletionRequest, data, refuse_unknown=False)).fields["prompt"] == prompt
    finally:
        process.close()
    assert max(sizes) < len(data) // 10


async def test_an_image_comes_in_slices_after_the_data(sizes: list[int]) -> None:
    images = ["QUJD" * (1 << 19), "QQ=="]
    parts = [{"type": "image_url", "image_url": f"data:image/png;base64,{image}"} for image in images]
    data = json.dumps({"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "a"}]}]}).encode()
    process = DecodingProcess()
    try:
        decoded = await process.decode(ChatRequest, data, refuse_unknown=False)
        refused = await process.decode(ChatRequest, data, refuse_unknown=False, max_text_bytes=99)
    finally:
        process.close()
    assert decoded.opaque == images
    assert decoded.text_bytes == len(data) - len("".join(images))
    messages = from_data(ChatRequest, decoded.fields, TakenOut(decoded.opaque)).messages
    assert [image.encoded.take() for image in messages.images if image.encoded] == images
    assert messages.messages[0]["content"] == [{"type": "image"}] * 2 + [{"type": "text", "text": "a"}]
    assert max(sizes) < len(data) // 7
    assert (refused.text_bytes, refused.fields, refused.opaque) == (decoded.text_bytes, {}, [])


@pytest.mark.parametrize("is_text", [False, True])
def test_more_objects_and_lists_than_any_conversation_has_are_refused(is_text: bool, engine: FakeEngine) -> None:
    lists = [[[] for _ in range(MAX_CONTAINERS // 16)] for _ in range(16)]
    made = json.dumps({"a": lists}) if is_text else {"a": lists}
    message: dict[str, Any] = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": made}}]}
    if not is_text:
        message = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": made}]}
    body = {"messages": [message, {"role": "user", "content": "x"}], "max_tokens": 3}
    with TestClient(create_app(make_context(engine, max_body_bytes=2**25, context_length=2**17))) as client:
        answer = post(client, "/v1/chat/completions" if is_text else "/v1/messages", body)
    assert answer.status_code == 400
    assert f"more than {MAX_CONTAINERS} objects and lists" in error_message(answer)


def test_counting_stops_where_enough_is_known() -> None:
    assert count_values(b",:[{" * 10, 100) == 40
    assert count_values(b"," * (1 << 22), 5) == 1 << 20
    assert count_values(b"a" * (1 << 20) + b"b," * 3 + b"[", 100) == 4


def test_a_longer_context_may_need_a_longer_body() -> None:
    def need(context_length: int, model: type[Strict] = ChatRequest) -> BodyNeed:
        limits = ApiLimits(context_length, VOCAB)
        return BodyNeed.of(model.most_tokens(limits), limits)

    assert need(8192).max_bytes < need(131072).max_bytes
    assert need(8192).max_bytes < need(8192, CompletionRequest).max_bytes
    assert need(2**20, CompletionRequest).max_bytes == 2**25
    assert need(2**22).max_values > 2**22  # a prompt of so many token ids
    assert need(8192, DetokenizeRequest).max_values > ApiLimits(8192, VOCAB).text_tokens


async def test_a_process_that_was_killed_is_started_again() -> None:
    process = DecodingProcess()
    data = json.dumps(BODIES["/v1/chat/completions"]).encode()
    try:
        for _ in range(2):
            decoded = await process.decode(ChatRequest, data, refuse_unknown=False)
            assert decoded.problem is None
            assert process._process is not None
            os.kill(process._process.pid, signal.SIGKILL)
    finally:
        process.close()


async def test_a_process_that_hangs_is_killed_and_the_next_body_is_decoded() -> None:
    process = DecodingProcess(deadline_s=0.05)
    data = json.dumps(BODIES["/v1/chat/completions"]).encode()
    patient = DecodingProcess()
    try:
        process._running()
        assert process._process is not None
        os.kill(process._process.pid, signal.SIGSTOP)
        with pytest.raises(ApiError) as caught:
            await process.decode(ChatRequest, data, refuse_unknown=False)
        assert caught.value.status_code == 503
        assert process._process is None
        assert (await patient.decode(ChatRequest, data, refuse_unknown=False)).problem is None
    finally:
        process.close()
        patient.close()


async def test_closing_ends_a_body_that_is_being_decoded_and_those_that_wait() -> None:
    process = DecodingProcess()
    assert (await process.decode(ChatRequest, b"{}", refuse_unknown=False)).problem is not None
    child = process._process
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(process.decode(ChatRequest, b"{}", refuse_unknown=False)) for _ in range(2)]
    await asyncio.sleep(0)
    process.close()
    for each in (*waiting, process.decode(ChatRequest, b"{}", refuse_unknown=False)):
        with pytest.raises(NotReady):
            await each
    while process._process is not None:
        await asyncio.sleep(0.001)
    assert child.returncode == -signal.SIGKILL


async def test_the_process_is_left_what_decoding_needs() -> None:
    process = DecodingProcess()
    try:
        await process.decode(ChatRequest, b"{}", refuse_unknown=False)
        assert process._process is not None
        status = Path(f"/proc/{process._process.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
    finally:
        process.close()


def test_the_process_knows_the_body_of_every_route() -> None:
    bodies = [operation["requestBody"]["content"] for operation in operations().values() if "requestBody" in operation]
    named = {content["application/json"]["schema"]["$ref"].rpartition("/")[2] for content in bodies}
    assert named == set(MODELS) - {NamesModel.__name__}  # which a gateway looks at in all of them
