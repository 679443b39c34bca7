"""Ollama's shapes: /api/chat, /api/generate, /api/tags, /api/show, /api/version and /api/ps."""

import json
from dataclasses import replace
from typing import Any

import pytest
from httpx import Response
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.app.application import ApiContext, create_app
from numaserve.server.engine.types import GenerationFailed, QueueFull
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import CONTEXT, EOS, MODEL, REPLY, ByteTokenizer, FakeEngine
from tests.support.masks import matches

CHAT, GENERATE = "/api/chat", "/api/generate"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    GENERATE: {"model": MODEL, "prompt": "hi"},
}
COUNTS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}
both = pytest.mark.parametrize("path", BODIES)


def ask(client: TestClient, path: str, **fields: Any) -> Response:
    return client.post(path, json=BODIES[path] | {"stream": False} | fields)


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["message"]["content"] if "message" in answer else answer["response"])


@both
def test_a_whole_answer_has_text_counts_and_durations(client: TestClient, engine: FakeEngine, path: str) -> None:
    answer = ask(client, path).json()
    assert text_of(answer) == REPLY
    assert (answer["model"], answer["done"], answer["done_reason"]) == (MODEL, True, "stop")
    assert answer["created_at"].endswith("Z")
    assert answer["prompt_eval_count"] == len(engine.admitted[0].prompt)
    assert answer["eval_count"] == len(REPLY.encode()) + 1
    durations = {name: answer[name] for name in COUNTS if name.endswith("duration")}
    assert all(isinstance(value, int) and value >= 0 for value in durations.values())
    assert answer["total_duration"] == pytest.approx(sum(durations.values()) - answer["total_duration"], abs=10)
    assert "logprobs" not in answer


@both
def test_lines_of_json_are_streamed_unless_that_is_refused(client: TestClient, path: str) -> None:
    answer = client.post(path, json=BODIES[path])
    assert answer.headers["content-type"] == "application/x-ndjson"
    *parts, last = map(json.loads, answer.text.splitlines())
    assert "".join(map(text_of, parts)) == REPLY
    assert not any(part["done"] or COUNTS & part.keys() for part in parts)
    assert (last["done"], last["done_reason"], text_of(last)) == (True, "stop", "")
    assert last.keys() >= COUNTS


def test_a_message_of_the_chat_is_the_assistant_s(client: TestClient) -> None:
    assert ask(client, CHAT).json()["message"] == {"role": "assistant", "content": REPLY}


def test_a_conversation_is_rendered_by_the_template(client: TestClient, engine: FakeEngine) -> None:
    turns = [("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")]
    ask(client, CHAT, messages=[{"role": role, "content": content} for role, content in turns])
    ask(client, CHAT, think=True)
    first, second = (bytes(t for t in request.prompt if t < 256).decode() for request in engine.admitted)
    assert first == "".join(f"{role}\n{content}" for role, content in turns)
    assert second == "Tuser\nhi"


def test_a_prompt_is_what_the_user_says_unless_it_is_raw(client: TestClient, engine: FakeEngine) -> None:
    ask(client, GENERATE, system="be brief")
    ask(client, GENERATE, raw=True)
    first, second = (bytes(t for t in request.prompt if t < 256).decode() for request in engine.admitted)
    assert (first, second) == ("system\nbe briefuser\nhi", "hi")


@both
def test_options_say_how_to_sample(client: TestClient, engine: FakeEngine, path: str) -> None:
    options = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 4, "num_predict": 3}
    options |= {"repeat_penalty": 1.5, "presence_penalty": 0.25, "frequency_penalty": -1, "num_ctx": 10**9}
    answer = ask(client, path, options=options | {"stop": ["世"], "num_gpu": 99, "repeat_last_n": -1})
    assert answer.json()["done_reason"] == "length"
    [request] = engine.admitted
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.9, 0.1)
    assert (sampling.seed, sampling.repetition_penalty) == (4, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -1)
    assert (request.max_new_tokens, request.stop) == (3, ("世",))


@pytest.mark.parametrize("predict", [None, 0, -1, -2, 10**6])
def test_without_a_bound_or_with_a_large_one_as_much_as_fits_is_generated(
    client: TestClient, engine: FakeEngine, predict: int | None
) -> None:
    ask(client, CHAT, options={"num_predict": predict, "seed": -1})
    [request] = engine.admitted
    assert request.max_new_tokens == CONTEXT - len(request.prompt)
    assert request.sampling.seed != -1
    assert EOS in request.stop_token_ids


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"format": "xml"}),
        (CHAT, {"format": ["json"]}),
        (CHAT, {"format": {"type": "no such type"}}),
        (CHAT, {"tools": [{"type": "function"}]}),
        (CHAT, {"think": "most"}),
        (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}),
        (GENERATE, {"suffix": "x"}),
        (GENERATE, {"template": "{{ .Prompt }}"}),
        (GENERATE, {"context": [1]}),
        (GENERATE, {"images": ["aGk="]}),
        (GENERATE, {"top_logprobs": 2}),
        (GENERATE, {"options": {"mirostat": 1}}),
        (GENERATE, {"options": {"typical_p": 0.5}}),
        (GENERATE, {"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}),
        (GENERATE, {"options": {"temperature": "hot"}}),
    ],
)
def test_what_would_change_the_result_and_is_not_served_is_refused(
    client: TestClient, engine: FakeEngine, path: str, fields: dict[str, Any]
) -> None:
    answer = ask(client, path, **fields)
    assert answer.status_code == 400
    blamed = [name for field, value in fields.items() for name in (field, *(value if isinstance(value, dict) else ()))]
    assert any(name in answer.json()["error"] for name in blamed)
    assert engine.admitted == []


@both
@pytest.mark.parametrize(
    ("given", "fits", "does_not"), [("json", '{"a": 1}', "1"), ({"type": "integer"}, "12", "{}"), ("", None, None)]
)
def test_a_format_is_what_the_answer_must_match(
    shared_client: TestClient, shared_engine: FakeEngine, path: str, given: object, fits: str | None, does_not: str
) -> None:
    shared_engine.admitted.clear()
    assert ask(shared_client, path, format=given).status_code == 200
    [request] = shared_engine.admitted
    if fits is None:
        assert request.matcher is None
        return
    assert request.matcher is not None
    assert matches(request.matcher(), ByteTokenizer(), fits)
    assert not matches(request.matcher(), ByteTokenizer(), does_not)


@pytest.mark.parametrize("path", [CHAT, GENERATE])
@pytest.mark.parametrize("stream", [None, True, False])
def test_a_request_without_a_prompt_only_wants_the_model_to_be_loaded(
    client: TestClient, engine: FakeEngine, path: str, stream: bool | None
) -> None:
    answer = client.post(path, json={"model": MODEL, "stream": stream, "keep_alive": "5m"})
    assert (answer.json()["done"], answer.json()["done_reason"], text_of(answer.json())) == (True, "load", "")
    assert client.post(path, json={"model": "other"}).status_code == 404
    engine.ready = False
    assert client.post(path, json={"model": MODEL}).status_code == 503
    assert engine.admitted == []


@both
def test_log_probabilities_have_the_shape_of_ollama(client: TestClient, path: str) -> None:
    [first, *_] = ask(client, path, logprobs=True, top_logprobs=2).json()["logprobs"]
    assert (first["token"], first["logprob"], first["bytes"], len(first["top_logprobs"])) == ("H", -0.5, [72], 2)
    lines = client.post(path, json=BODIES[path] | {"logprobs": True}).text.splitlines()
    assert [each["token"] for each in json.loads(lines[0])["logprobs"]] == ["H"]


@both
def test_a_name_may_have_the_tag_that_is_the_default(context: ApiContext, path: str) -> None:
    client = TestClient(app_over(replace(context, other_names=("tagged:8b",))))
    for name in (f"{MODEL}:latest", "tagged:8b", "tagged:8b:latest"):
        answer = ask(client, path, model=name)
        assert (answer.status_code, answer.json()["model"]) == (200, name)
    answer = ask(client, path, model="tagged")
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("The model 'tagged' does not exist. The server has")


@both
@pytest.mark.parametrize("after", [0, 2])
def test_a_failure_in_mid_stream_is_a_line(client: TestClient, engine: FakeEngine, path: str, after: int) -> None:
    engine.fail_after, engine.failure = after, GenerationFailed("A worker died.")
    answer = client.post(path, json=BODIES[path])
    assert answer.status_code == (200 if after else 500)
    assert json.loads(answer.text.splitlines()[-1]) == {"error": "A worker died."}


def test_a_full_queue_answers_429_in_the_shape_of_ollama(client: TestClient, engine: FakeEngine) -> None:
    engine.refusal = QueueFull("Full.", 7)
    answer = ask(client, CHAT)
    assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (429, {"error": "Full."}, "7")


def test_earlier_calls_reach_a_template_that_knows_them(client: TestClient, context: ApiContext) -> None:
    call = {"function": {"name": "look", "arguments": {"place": "x"}}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "y", "tool_name": "look"}]
    assert "'tool_calls'" in ask(client, CHAT, messages=[turns[0] | {"role": "user"}]).json()["error"]
    shown: list[dict[str, Any]] = []

    class Knowing(type(context.tokenizer)):  # type: ignore[misc] # the stand-in's class
        chat_template = "tool_calls"

        def render_chat(self, messages: list[dict[str, Any]], **_: object) -> str:
            shown.extend(messages)
            return "x"

    with TestClient(create_app(replace(context, tokenizer=Knowing(), tool_format=tool_formats()["hermes"]))) as knowing:
        assert ask(knowing, CHAT, messages=turns).status_code == 200
        assert knowing.post("/api/show", json={"model": MODEL}).json()["capabilities"] == ["completion", "tools"]
    assert shown[0]["tool_calls"] == [{"type": "function", **call}]
    assert shown[1] == {"role": "tool", "content": "y", "name": "look"}


def test_the_model_is_listed_under_its_names(context: ApiContext, engine: FakeEngine) -> None:
    client = TestClient(app_over(replace(context, other_names=("tagged:8b",))))
    for path in ("/api/tags", "/api/ps"):
        models = client.get(path).json()["models"]
        assert [model["name"] for model in models] == [f"{MODEL}:latest", "tagged:8b"]
        assert all(len(model["digest"]) == 64 for model in models)
    assert models[0]["context_length"] == CONTEXT
    engine.ready = False
    assert client.get("/api/ps").json() == {"models": []}
    assert len(client.get("/api/tags").json()["models"]) == 2


@pytest.mark.parametrize("field", ["model", "name"])
def test_a_model_is_shown_with_its_context(client: TestClient, field: str) -> None:
    shown = client.post("/api/show", json={field: f"{MODEL}:latest"}).json()
    architecture = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{architecture}.context_length"] == CONTEXT
    assert shown["capabilities"] == ["completion"]
    assert client.post("/api/show", json={field: "other"}).status_code == 404
    assert shown["model_info"]["general.basename"] == MODEL.rpartition("/")[2]


def test_clients_are_told_a_version_of_ollama_s_api(client: TestClient) -> None:
    version = client.get("/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 13, 4]


@pytest.mark.parametrize("headers", [{}, {"Accept": "*/*"}, {"Accept": "application/json"}])
def test_the_root_says_what_clients_of_ollama_look_for(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/", headers=headers).text == "Ollama is running"
    assert client.head("/", headers=headers).status_code == 200


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "application/octet-stream"])
def test_a_body_is_json_whatever_its_header_says(client: TestClient, kind: str) -> None:
    body = json.dumps({"model": MODEL, "prompt": "hi", "stream": False})
    answer = client.post("/api/generate", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 200, answer.text
    assert answer.json()["response"]


def test_a_model_that_is_served_need_not_be_fetched(client: TestClient) -> None:
    assert client.post("/api/pull", json={"name": MODEL, "stream": False}).json() == {"status": "success"}
    streamed = client.post("/api/pull", json={"model": f"{MODEL}:latest"})
    assert [json.loads(line) for line in streamed.text.splitlines()] == [{"status": "success"}]
    assert client.post("/api/pull", json={"model": "other"}).status_code == 404
    assert client.post("/api/pull", json={}).status_code == 400


def test_the_tag_is_taken_on_other_routes_too(client: TestClient) -> None:
    body = {"model": f"{MODEL}:latest", "messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert client.post("/v1/chat/completions", json={**body, "model": f"{MODEL}:8b"}).status_code == 404
