import dataclasses

import msgspec
import pytest
from numaserve.server.app.application import ApiContext, create_app
from starlette.testclient import TestClient

from tests.support.api_fakes import (
    BOS,
    CONTEXT,
    EOS,
    MODEL,
    OPERATION,
    OVERVIEW,
    TURN,
    VOCAB,
    ByteTokenizer,
    FakeEngine,
    make_context,
)


def test_the_model_is_listed(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model["id"] == MODEL
    assert model["object"] == "model"
    assert model["max_model_len"] == CONTEXT
    assert (model["input_modalities"], model["image_limits"]) == (["text"], None)
    assert client.get(f"/v1/models/{MODEL}").json() == model


def test_a_model_that_is_not_there_is_not_found(client: TestClient) -> None:
    answer = client.get("/v1/models/other")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/health", "/readyz", "/ping"])
def test_health_answers_503_while_not_ready(client: TestClient, engine: FakeEngine, path: str) -> None:
    assert client.get(path).status_code == 200
    engine.ready = False
    answer = client.get(path)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "not_ready"


def test_a_server_that_is_not_ready_is_alive_until_the_engine_gives_up(client: TestClient, engine: FakeEngine) -> None:
    engine.ready = False
    assert client.get("/livez").status_code == 200
    engine.alive = False
    assert client.get("/livez").status_code == 503


def test_the_version_is_told(client: TestClient) -> None:
    assert client.get("/version").json() == {"version": "1.2.3"}


def test_server_info_is_the_engine_s(client: TestClient) -> None:
    info = client.get("/server_info").json()
    assert (info["version"], info["tp"]) == ("1.2.3", 2)


def test_the_machine_is_told_in_one_answer(client: TestClient) -> None:
    told = client.get("/machine").json()
    assert (told["model"], told["version"]) == (MODEL, "1.2.3")
    assert told["now"] == msgspec.to_builtins(OVERVIEW)
    assert [(rank["rank"], rank["steps"]) for rank in told["costs"]] == [(0, 2), (1, 2)]


def test_a_machine_without_workers_has_no_costs(client: TestClient, engine: FakeEngine) -> None:
    engine.ready = False
    told = client.get("/machine").json()
    assert (told["costs"], told["now"]["waiting"]) == ([], 1)


def test_a_profile_comes_with_server_info_when_it_is_asked_for(client: TestClient) -> None:
    info = client.get("/server_info?profile=1").json()
    assert info["tp"] == 2
    assert [rank["rank"] for rank in info["profile"]] == [0, 1]
    assert info["profile"][1] == {
        "rank": 1,
        "steps": 2,
        "tokens": 9,
        "native_ns": 1000,
        "operations": [msgspec.structs.asdict(OPERATION)],
        "ceilings": None,
        "cpu_ns": 0,
        "cpu_wait_ns": 0,
    }
    measured = client.get("/server_info?profile=1&ceilings=1").json()["profile"][0]["ceilings"]
    assert measured == {"isa": "fake", "threads": 1, "read_bytes_s": 1e9, "flops_s": {"bf16": 1e12}}


def test_ceilings_are_measured_only_when_idle_and_as_a_part_of_the_profile(
    client: TestClient, engine: FakeEngine
) -> None:
    engine.idle = False
    assert client.get("/server_info?profile=1").status_code == 200
    busy = client.get("/server_info?profile=1&ceilings=1")
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "requests_running")
    alone = client.get("/server_info?ceilings=1")
    assert (alone.status_code, alone.json()["error"]["param"]) == (400, "ceilings")
    assert client.get("/server_info?profile=perhaps").status_code == 400


def test_without_workers_there_is_no_profile(client: TestClient, engine: FakeEngine) -> None:
    engine.ready = False
    assert client.get("/server_info").status_code == 200
    assert client.get("/server_info?profile=1").status_code == 503


def test_model_info_has_the_names_routers_look_for(client: TestClient) -> None:
    info = client.get("/get_model_info").json()
    assert info["model_path"] == "/models/tiny"
    assert info["is_generation"] is True
    assert info["vocab_size"] == VOCAB


def test_model_info_counts_the_token_ids_that_prompts_may_have(engine: FakeEngine) -> None:
    context = make_context(engine)
    rows = dataclasses.replace(context.limits, vocab_size=2 * VOCAB)  # a tokenizer may have fewer ids than the model
    client = TestClient(create_app(dataclasses.replace(context, limits=rows)))
    last = client.get("/get_model_info").json()["vocab_size"] - 1
    body = {"model": MODEL, "max_tokens": 1}
    assert client.post("/v1/completions", json=body | {"prompt": [last]}).status_code == 200
    assert client.post("/v1/completions", json=body | {"prompt": [last + 1]}).status_code == 400


def test_the_cache_is_flushed_only_when_idle(client: TestClient, engine: FakeEngine) -> None:
    assert client.post("/flush_cache").status_code == 200
    engine.idle = False
    assert client.post("/flush_cache").status_code == 409


def test_metrics_are_in_prometheus_s_text_format(client: TestClient, context: ApiContext) -> None:
    context.metrics.first_token(since_admitted=0.1, since_scheduled=0.1)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'numaserve_time_to_first_token_seconds_count{{model_name="{MODEL}"}} 1.0' in answer.text


def test_a_text_is_tokenized_with_or_without_special_tokens(client: TestClient) -> None:
    answer = client.post("/tokenize", json={"prompt": "ab", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": CONTEXT,
        "tokens": [BOS, 97, 98],
        "token_strs": [f"<{BOS}>", "<97>", "<98>"],
    }
    answer = client.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False}).json()
    assert answer["tokens"] == [97, 98]


def test_a_conversation_is_tokenized_as_chat_would(client: TestClient) -> None:
    messages = [{"role": "user", "content": "x"}]
    answer = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert answer["tokens"] == [TURN, *b"user\nx"]


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}])
def test_tokenize_wants_one_of_text_and_conversation(client: TestClient, body: object) -> None:
    answer = client.post("/tokenize", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


def test_tokens_become_text_again(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"prompt": "世"}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "<s>世"}
    assert client.post("/detokenize", json={"tokens": tokens, "skip_special_tokens": True}).json() == {"prompt": "世"}


@pytest.mark.parametrize("tokens", [[VOCAB], [-1], [1.5], ["1"], [2**31], None, "x"])
def test_what_is_no_token_id_is_refused(client: TestClient, tokens: object) -> None:
    answer = client.post("/detokenize", json={"tokens": tokens})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tokens")


def test_vllm_s_names_are_served(client: TestClient, engine: FakeEngine) -> None:
    assert client.post("/ping").json() == {"status": "ok"}
    assert client.get("/load").json() == {"server_load": 4}
    assert client.post("/reset_prefix_cache").json()["success"] is True
    engine.idle = False
    assert client.post("/reset_prefix_cache").status_code == 409


def test_the_tokenizer_is_shown_where_the_operator_says_so(client: TestClient, engine: FakeEngine) -> None:
    shown = client.get("/tokenizer_info").json()
    assert (shown["vocab_size"], shown["model_max_length"]) == (VOCAB, CONTEXT)
    assert (shown["bos_token"], shown["eos_token"]) == (f"<{BOS}>", f"<{EOS}>")
    assert shown["chat_template"] == ByteTokenizer.chat_template
    other = TestClient(create_app(make_context(engine, tokenizer_info=False)))
    assert other.get("/tokenizer_info").status_code == 404
