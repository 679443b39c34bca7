"""SGLang's shapes: /generate, /abort_request and /health_generate."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response
from numaserve.server.app.application import ApiContext, create_app
from numaserve.server.engine.types import GenerationFailed, QueueFull
from numaserve.server.surfaces.sglang import generate as generate_module
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, EOS, MODEL, REPLY, ByteTokenizer, FakeEngine, make_context
from tests.support.masks import matches

TOKENS = [*REPLY.encode(), EOS]


def ask(client: TestClient, **fields: Any) -> Response:
    return client.post("/generate", json=({} if "input_ids" in fields else {"text": "hi"}) | fields)


def events_of(answer: Response) -> Iterator[dict[str, Any]]:
    *events, end = answer.text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    yield from (json.loads(event.removeprefix("data: ")) for event in events)


def test_a_text_is_continued(client: TestClient, engine: FakeEngine) -> None:
    engine.cached_tokens, engine.stop_reason = 1, EOS
    answer = ask(client, rid="mine").json()
    assert (answer["text"], answer["output_ids"]) == (REPLY, TOKENS)
    info = answer["meta_info"]
    assert info.pop("e2e_latency") > 0
    assert info == {
        "id": "mine",
        "finish_reason": {"type": "stop", "matched": EOS},
        "prompt_tokens": 3,
        "completion_tokens": len(TOKENS),
        "cached_tokens": 1,
    }
    assert engine.admitted[0].prompt == [BOS, *b"hi"]


def test_token_ids_are_continued(client: TestClient, engine: FakeEngine) -> None:
    answer = ask(client, input_ids=[1, 2], sampling_params={"max_new_tokens": 1}).json()
    assert engine.admitted[0].prompt == [1, 2]
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 1}


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({"text": ["a"]}, 1),
        ({"text": ["a", "b"]}, 2),
        ({"input_ids": [[1], [2], [3]]}, 3),
        ({"text": "a", "sampling_params": {"n": 2}}, 2),
        ({"text": ["a", "b"], "sampling_params": {"n": 2}}, 4),
    ],
)
def test_several_answers_are_a_list_in_order(client: TestClient, fields: dict[str, Any], prompts: int) -> None:
    answers = ask(client, rid="r", **fields).json()
    assert [answer["meta_info"]["id"] for answer in answers] == [f"r-{index}" for index in range(prompts)]
    assert {answer["text"] for answer in answers} == {REPLY}
    last = {event["index"]: event for event in events_of(ask(client, stream=True, **fields))}
    assert [last[index]["text"] for index in range(prompts)] == [REPLY] * prompts


def test_an_event_has_all_that_came_before(client: TestClient) -> None:
    events = list(events_of(ask(client, stream=True, return_logprob=True)))
    texts = [event["text"] for event in events]
    assert texts[-1] == REPLY
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert [event["output_ids"] for event in events] == [TOKENS[: count + 1] for count in range(len(TOKENS))]
    assert [len(event["meta_info"]["output_token_logprobs"]) for event in events] == list(range(1, len(TOKENS) + 1))
    assert [event["meta_info"]["finish_reason"] is None for event in events] == [True] * (len(events) - 1) + [False]


def test_sampling_parameters_have_sglang_s_names(client: TestClient, engine: FakeEngine) -> None:
    parameters = {"max_new_tokens": 9, "min_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1}
    parameters |= {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.5, "sampling_seed": 4}
    parameters |= {"stop_token_ids": [5], "ignore_eos": True, "skip_special_tokens": False}
    parameters |= {"no_stop_trim": True}
    ask(client, sampling_params={**parameters, "stop": "x", "logit_bias": {"3": 1.5}}, cache_salt="s")
    [request] = engine.admitted
    sampling = request.sampling
    assert (request.max_new_tokens, request.min_new_tokens, request.stop) == (9, 2, ("x",))
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)
    assert (sampling.repetition_penalty, sampling.seed, sampling.logit_bias) == (1.5, 4, {3: 1.5})
    assert request.stop_token_ids == {5}
    assert (request.skip_special_tokens, request.cache_salt, request.include_stop) == (False, "s", True)


@pytest.mark.parametrize(
    ("parameters", "fits"),
    [({"regex": "[ab]+"}, "ab"), ({"json_schema": '{"type": "integer"}'}, "12"), ({"ebnf": 'root ::= "yes"'}, "yes")],
)
def test_parameters_may_constrain_the_answer(
    shared_client: TestClient, shared_engine: FakeEngine, parameters: dict[str, Any], fits: str
) -> None:
    shared_engine.admitted.clear()
    assert ask(shared_client, sampling_params=parameters).status_code == 200
    [request] = shared_engine.admitted
    assert request.matcher is not None
    assert matches(request.matcher(), ByteTokenizer(), fits)
    assert not matches(request.matcher(), ByteTokenizer(), "no")


@pytest.mark.parametrize("parameters", [None, {}, {"max_new_tokens": None}])
def test_an_answer_has_128_tokens_at_most_unless_told(
    client: TestClient, engine: FakeEngine, parameters: dict[str, Any] | None
) -> None:
    ask(client, sampling_params=parameters)
    assert engine.admitted[0].max_new_tokens == 128


def test_log_probabilities_are_of_the_answer_unless_a_start_is_given(client: TestClient) -> None:
    info = ask(client, return_logprob=True, top_logprobs_num=2).json()["meta_info"]
    assert info["input_token_logprobs"] == info["input_top_logprobs"] == []
    assert info["output_token_logprobs"] == [[-0.5, token, None] for token in TOKENS]
    assert info["output_top_logprobs"][0] == [[-0.5, TOKENS[0], None], [-9999.0, 0, None]]
    assert "output_top_logprobs" not in ask(client, return_logprob=True).json()["meta_info"]


@pytest.mark.parametrize(("start", "positions"), [(0, 4), (1, 3), (3, 1), (4, 0), (100, 0)])
def test_a_prompt_is_scored_from_a_position_on(client: TestClient, start: int, positions: int) -> None:
    fields = {
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": 1,
        "return_text_in_logprobs": True,
    }
    info = ask(client, input_ids=[97, 98, 99, 100], **fields).json()["meta_info"]
    entries = info["input_token_logprobs"]
    assert (len(entries), len(info["input_top_logprobs"])) == (positions, positions)
    if positions:
        assert entries[0] == [None, 97 + start, chr(97 + start)]
        assert info["input_top_logprobs"][0] is None
        assert all(logprob == -0.5 for logprob, *_ in entries[1:])
    assert info["output_token_logprobs"][0] == [-0.5, TOKENS[0], "H"]


def test_named_tokens_have_log_probabilities_at_each_position(client: TestClient, engine: FakeEngine) -> None:
    info = ask(client, return_logprob=True, token_ids_logprob=[7, 5]).json()["meta_info"]
    assert engine.admitted[0].sampling.token_ids_logprob == [7, 5]
    assert info["output_token_ids_logprobs"] == [[[-0.25, 7, None], [-0.25, 5, None]] for _ in TOKENS]
    assert ask(client, return_logprob=True, token_ids_logprob=[300]).json()["error"]["param"] == "token_ids_logprob"


def test_a_prompt_can_be_scored_alone(client: TestClient) -> None:
    fields = {"return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}
    answer = ask(client, input_ids=[97, 98], **fields).json()
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert len(answer["meta_info"]["input_token_logprobs"]) == 2
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


@pytest.mark.parametrize(
    "fields",
    [
        {"input_ids": []},
        {"input_ids": [[]]},
        {"input_ids": ["x"]},
        {"text": []},
        {"text": 5},
        {"text": "x", "input_ids": [1]},
        {"input_ids": [300]},
        {"top_logprobs_num": 1},
        {"token_ids_logprob": [1]},
        {"token_ids_logprob": [1], "return_logprob": True, "logprob_start_len": 0},
        {"sampling_params": [{}]},
        {"sampling_params": {"regex": "("}},
        {"sampling_params": {"regex": "a", "ebnf": 'root ::= "a"'}},
        {"sampling_params": {"json_schema": "{"}},
        {"rid": ""},
        {"rid": ["a"]},
        {"image_data": "x"},
    ],
)
def test_what_is_not_served_is_refused(client: TestClient, engine: FakeEngine, fields: dict[str, Any]) -> None:
    answer = client.post("/generate", json=fields if "input_ids" in fields else {"text": "x", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
    assert engine.admitted == []


def test_a_failure_is_an_error_or_an_event(client: TestClient, engine: FakeEngine) -> None:
    engine.fail_after, engine.failure = 1, GenerationFailed("A worker died.")
    assert (ask(client).status_code, ask(client).json()["error"]["message"]) == (500, "A worker died.")
    assert list(events_of(ask(client, stream=True)))[-1]["error"]["message"] == "A worker died."


class Callers:
    """Clients of one server whose answers stop after two tokens, and never end by themselves."""

    def __init__(self, *keys: str) -> None:
        self.engine = FakeEngine(pause_after=2)
        self.context = make_context(self.engine, keys=keys)
        transport = ASGITransport(app_over(self.context))
        headers = [{"Authorization": f"Bearer {key}"} for key in keys] or [{}]
        self.clients = [
            AsyncClient(transport=transport, base_url="http://x", headers=each, timeout=10) for each in headers
        ]

    async def begin(self, client: AsyncClient, path: str = "/generate", **fields: Any) -> asyncio.Task[Response]:
        """Send a request and wait until the engine has it."""
        count = len(self.engine.admitted)
        asking = asyncio.create_task(client.post(path, json={"text": "hi"} | fields))
        while len(self.engine.admitted) == count:
            await asyncio.sleep(0)
        return asking

    @staticmethod
    async def abort(client: AsyncClient, **fields: Any) -> int:
        """How many requests were aborted."""
        return int((await client.post("/abort_request", json=fields)).json()["aborted"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_can_be_aborted_by_its_id(stream: bool) -> None:
    callers = Callers()
    [client] = callers.clients
    asking = await callers.begin(client, rid="one", stream=stream)
    assert await callers.abort(client, rid="another") == 0
    assert await callers.abort(client, rid="one") == 1
    answer = await asking
    last = list(events_of(answer))[-1] if stream else answer.json()
    assert answer.status_code == 200
    assert last["meta_info"]["finish_reason"] == {"type": "abort", "message": "The request was aborted."}
    assert callers.engine.aborted == ["one-0"]
    assert await callers.abort(client, rid="one") == 0


async def test_an_id_that_is_taken_is_refused_until_it_is_free() -> None:
    callers = Callers()
    [client] = callers.clients
    first = await callers.begin(client, rid="one")
    refused = await client.post("/generate", json={"text": "hi", "rid": "one"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "request_id_taken")
    assert len(callers.engine.admitted) == 1
    await callers.abort(client, rid="one")
    await first
    callers.engine.pause_after = None
    assert (await client.post("/generate", json={"text": "hi", "rid": "one"})).status_code == 200
    assert (await client.post("/generate", json={"input_ids": [300], "rid": "one"})).status_code == 400
    assert (await client.post("/generate", json={"text": "hi", "rid": "one"})).status_code == 200


async def test_nobody_aborts_another_key_s_request() -> None:
    callers = Callers("key-a", "key-b")
    one, other = callers.clients
    mine, theirs = await callers.begin(one, rid="same"), await callers.begin(other, rid="same")
    assert await callers.abort(one, rid="same") == 1
    assert await callers.abort(one, rid="same") == await callers.abort(one, abort_all=True) == 0
    assert (await mine).json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert not theirs.done()
    assert await callers.abort(other, abort_all=True) == 1
    assert (await theirs).json()["meta_info"]["finish_reason"]["type"] == "abort"


async def test_all_of_a_key_s_requests_can_be_aborted_whatever_surface_they_came_through() -> None:
    callers = Callers()
    [client] = callers.clients
    body = {"messages": [{"role": "user", "content": "hi"}], "model": MODEL, "stream": False}
    answers = [await callers.begin(client, path, **body) for path in ("/v1/chat/completions", "/api/chat")]
    assert await callers.abort(client, abort_all=True) == 2
    openai, ollama = [await answer for answer in answers]
    assert (openai.status_code, openai.json()["error"]["code"]) == (400, "aborted")
    assert (ollama.status_code, ollama.json()) == (400, {"error": "The request was aborted."})


async def test_a_request_whose_client_leaves_frees_its_id() -> None:
    callers = Callers()
    [client] = callers.clients
    asking = await callers.begin(client, rid="one")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    while callers.engine.aborted == []:
        await asyncio.sleep(0)
    callers.engine.pause_after = None
    assert (await client.post("/generate", json={"text": "hi", "rid": "one"})).status_code == 200


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": None}, {"abort_all": False}])
def test_an_abort_names_what_it_is_about(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post("/abort_request", json=body).json()["error"]["param"] == "rid"


def test_a_probe_generates_a_token(client: TestClient, engine: FakeEngine) -> None:
    assert client.get("/health_generate").json() == {"status": "ok"}
    [request] = engine.admitted
    assert (request.prompt, request.max_new_tokens, request.sampling.temperature) == ([0], 1, 0.0)


def test_a_probe_generates_nothing_while_loading(client: TestClient, engine: FakeEngine) -> None:
    engine.ready = False
    assert client.get("/health_generate").status_code == 503
    assert engine.admitted == []


def test_a_probe_tells_of_a_full_queue_and_of_a_failure(client: TestClient, engine: FakeEngine) -> None:
    engine.refusal = QueueFull("Full.", 1)
    assert client.get("/health_generate").status_code == 429
    engine.refusal, engine.fail_after, engine.failure = None, 0, GenerationFailed("A worker died.")
    assert client.get("/health_generate").status_code == 500


async def test_a_probe_waits_no_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_module, "PROBE_SECONDS", 0.0)
    engine = FakeEngine(pause_after=0)
    transport = ASGITransport(app_over(make_context(engine)))
    async with AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.get("/health_generate")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "generation_stalled")
    assert len(engine.aborted) == len(engine.admitted)


def test_a_served_name_may_be_given(context: ApiContext) -> None:
    client = TestClient(create_app(replace(context, other_names=("another",))))
    assert ask(client, model="another").status_code == 200
    assert ask(client, model="third").status_code == 404
