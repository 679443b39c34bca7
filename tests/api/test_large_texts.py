import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest
from numaserve.server.app.application import ApiContext
from numaserve.server.engine.types import QueueFull
from numaserve.server.http.large_json import json_pieces
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import CONTEXT, MODEL, FakeEngine, make_context, outcomes
from tests.support.byte_tokenizer import ByteTokenizer

LONG = CONTEXT * 256  # characters; beyond that nothing is counted
PATHS = {
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/tokenize": "prompt",
    "/detokenize": "tokens",
}


def body_for(path: str, text: str = "hi") -> dict[str, Any]:
    values = {"prompt": text, "messages": [{"role": "user", "content": text}], "tokens": [1, 2]}
    return {"model": MODEL, PATHS[path]: values[PATHS[path]]}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_long_prompt_that_cannot_fit_says_so(
    client: TestClient, context: ApiContext, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("numaserve.server.text.work.PIECE_CHARACTERS", 64)
    longest = 0

    def encode(tokenizer: ByteTokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        nonlocal longest
        longest = max(longest, len(text))
        return list(text.encode())

    monkeypatch.setattr(ByteTokenizer, "encode", encode)
    answer = client.post(path, json=body_for(path, "x" * LONG))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", PATHS[path])
    assert f"more than {CONTEXT * 2 // 64 * 64 + 64} tokens" in error["message"]
    assert outcomes(context, "too_long") == 1
    assert engine.admitted == []
    assert longest == 64  # the whole was never tokenized


def test_more_token_ids_than_the_context_are_refused_before_they_are_looked_at(client: TestClient) -> None:
    answer = client.post("/v1/completions", json={"prompt": [10**9] * (CONTEXT + 1)})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    answer = client.post("/v1/completions", json={"prompt": [[1], [10**9]]})
    assert "token id 1000000000" in answer.json()["error"]["message"]


def test_texts_of_several_contexts_are_tokenized_up_to_a_limit(
    client: TestClient, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * LONG
    tokens = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    assert tokens == list(text.encode())
    assert client.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == text
    monkeypatch.setattr("numaserve.server.http.limits._ANSWERED_TOKENS", 1000)
    monkeypatch.setattr("numaserve.server.text.work.PIECE_CHARACTERS", 1000)
    for path, body in (("/tokenize", {"prompt": text}), ("/detokenize", {"tokens": [1] * 1001})):
        error = client.post(path, json=body).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", PATHS[path])
        assert error["message"].endswith("tokens or more; at most 1000 are allowed. Shorten the input.")
    assert outcomes(context, "too_long") == 2
    assert client.post("/detokenize", json={"tokens": [65] * 1000}).json() == {"prompt": "A" * 1000}


@pytest.mark.parametrize("path", PATHS)
def test_a_full_queue_of_texts_answers_429(client: TestClient, context: ApiContext, path: str) -> None:
    executors = (context.text._small, context.text._templates)
    for executor in executors:
        executor._requests["somebody"] = 2 * executor._max_requests
    answer = client.post(path, json=body_for(path))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(answer.headers["retry-after"]) >= 1
    assert outcomes(context, "queue_full") == 1
    for executor in executors:
        executor._requests.clear()
    assert client.post(path, json=body_for(path)).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_request_whose_client_left_makes_room_for_others(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    begun, opened = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> str:
        begun.set()
        assert opened.wait(30)
        return ""

    for method in ("encode", "decode", "render_chat"):
        monkeypatch.setattr(ByteTokenizer, method, wait)
    context = make_context(engine, max_sequences=1)
    app = app_over(context)

    async def run() -> None:
        gone = asyncio.Event()
        incoming = [{"type": "http.request", "body": json.dumps(body_for(path)).encode(), "more_body": False}]

        async def receive() -> Any:
            if not incoming:
                await gone.wait()
                return {"type": "http.disconnect"}
            return incoming.pop()

        async def send(_message: Any) -> None:
            pass

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        request = asyncio.create_task(app(scope, receive, send))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFull):
            await context.text.render(str) if "chat" in path else context.text.admit(1).__enter__()
        gone.set()
        await asyncio.wait_for(request, 10)  # though the thread is still at it
        with context.text.admit(1):
            pass
        opened.set()

    asyncio.run(run())
    assert engine.admitted == []
    context.text.close()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"a": 1, "b": None},
        {"text": 'é"\n' * 700_000, "n": 3},
        {"tokens": list(range(200_000)), "texts": ["é,", '"'] * 100_000},
        {"text": "", "tokens": []},
    ],
)
def test_json_in_pieces_is_json(fields: dict[str, object]) -> None:
    pieces = json_pieces(fields)
    assert msgspec.json.decode(b"".join(pieces)) == fields
    assert max(map(len, pieces)) < 6 * 2**20


@pytest.mark.parametrize("count", [0, 1, 65536, 200_000])
def test_an_iterator_becomes_an_array(count: int) -> None:
    pieces = json_pieces({"a": map(str, range(count)), "b": 1})
    assert msgspec.json.decode(b"".join(pieces)) == {"a": list(map(str, range(count))), "b": 1}
