import dataclasses

from numaserve.server.app.application import ApiContext, create_app
from whole_answers import TestClient

from tests.support.api_fakes import CONTEXT, MODEL, FakeEngine, make_context
from tests.support.byte_tokenizer import BOS, EOS, VOCAB, ByteTokenizer


def test_model_info_counts_the_token_ids_that_prompts_may_have(engine: FakeEngine) -> None:
    context = make_context(engine)
    rows = dataclasses.replace(context.limits, vocab_size=2 * VOCAB)  # a tokenizer may have fewer ids than the model
    client = TestClient(create_app(dataclasses.replace(context, limits=rows)))
    last = client.get("/get_model_info").json()["vocab_size"] - 1
    body = {"model": MODEL, "max_tokens": 1}
    assert client.post("/v1/completions", json=body | {"prompt": [last]}).status_code == 200
    assert client.post("/v1/completions", json=body | {"prompt": [last + 1]}).status_code == 400


def test_metrics_are_in_prometheus_s_text_format(client: TestClient, context: ApiContext) -> None:
    context.metrics.first_token(since_admitted=0.1, since_scheduled=0.1)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'numaserve_time_to_first_token_seconds_count{{model_name="{MODEL}"}} 1.0' in answer.text


def test_the_tokenizer_is_shown_where_the_operator_says_so(client: TestClient, engine: FakeEngine) -> None:
    shown = client.get("/tokenizer_info").json()
    assert (shown["vocab_size"], shown["model_max_length"]) == (VOCAB, CONTEXT)
    assert (shown["bos_token"], shown["eos_token"]) == (f"<{BOS}>", f"<{EOS}>")
    assert shown["chat_template"] == ByteTokenizer().chat_template
    other = TestClient(create_app(make_context(engine, tokenizer_info=False)))
    assert other.get("/tokenizer_info").status_code == 404


def test_a_list_of_models_shows_no_path() -> None:
    names = {"other_names": ("alias",), "own_name": "org/model", "model_path": "/srv/models/x"}
    with TestClient(create_app(dataclasses.replace(make_context(FakeEngine()), **names))) as client:
        listed = client.get("/v1/models")
    assert {model["root"] for model in listed.json()["data"]} == {"org/model"}
    assert "/srv" not in listed.text
