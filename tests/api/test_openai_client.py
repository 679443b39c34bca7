"""The `openai` package against a real HTTP server: what it parses is what its users get."""

import time
from collections.abc import Iterator

import openai
import pytest
from numaserve.server.engine.types import GenerationFailed
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.quota import KeyLimits

from tests.support.api_fakes import MODEL, REPLY, FakeEngine, make_context
from tests.support.stand_in import ServedContext

KEY = "key-of-a-test"
LIMITED = "key-of-one-request"


@pytest.fixture
def base_url(engine: FakeEngine) -> Iterator[str]:
    limited = ApiKey(LIMITED, limits=KeyLimits(requests_per_minute=1))
    with ServedContext(make_context(engine, keys=[KEY, limited])) as server:
        yield f"{server.url}/v1"


@pytest.fixture
def openai_client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


def test_chat(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=1
    )
    (choice,) = answer.choices
    assert choice.message.content == REPLY
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert choice.logprobs.content[0].top_logprobs[0].token == "H"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model_extra == {}  # nothing that the package's types do not know


def test_a_limit_of_the_key_is_a_rate_limit(openai_client: openai.OpenAI) -> None:
    limited = openai_client.with_options(api_key=LIMITED)
    answer = limited.completions.with_raw_response.create(model=MODEL, prompt="hi")
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError, match="limit: 1 request per minute") as caught:
        limited.completions.create(model=MODEL, prompt="hi")
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    openai_client.completions.create(model=MODEL, prompt="hi")


def test_chat_streams(openai_client: openai.OpenAI) -> None:
    stream = openai_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
        n=2,
    )
    texts = {0: "", 1: ""}
    chunks = list(stream)
    for chunk in chunks:
        assert chunk.model_extra == {}
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: REPLY, 1: REPLY}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2 * (len(REPLY.encode()) + 1)


def test_completions(openai_client: openai.OpenAI) -> None:
    answer = openai_client.completions.create(
        model=MODEL, prompt=["a", "b"], echo=True, logprobs=1, max_tokens=2, extra_body={"top_k": 1}
    )
    assert [choice.text for choice in answer.choices] == ["aH", "bH"]
    assert answer.choices[1].logprobs is not None
    assert answer.choices[1].logprobs.token_logprobs is not None
    assert answer.choices[1].logprobs.token_logprobs == [None, -0.5, -0.5, -0.5]  # the first stands after nothing
    assert answer.model_extra == {}


def test_completions_stream(openai_client: openai.OpenAI) -> None:
    stream = openai_client.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == REPLY


def test_responses(openai_client: openai.OpenAI) -> None:
    first = openai_client.responses.create(model=MODEL, input="hi")
    assert first.output_text == REPLY
    second = openai_client.responses.create(model=MODEL, input="more", previous_response_id=first.id)
    assert second.usage is not None
    assert second.usage.input_tokens > len(REPLY.encode())
    assert openai_client.responses.retrieve(first.id).output == first.output
    openai_client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="No stored response has the id"):
        openai_client.responses.retrieve(first.id)


def test_responses_stream(openai_client: openai.OpenAI) -> None:
    with openai_client.responses.stream(model=MODEL, input="hi") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == REPLY
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


def test_models(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == [MODEL]
    assert openai_client.models.retrieve(MODEL).owned_by == "numaserve"


def test_errors_become_the_package_s_own(openai_client: openai.OpenAI, base_url: str, engine: FakeEngine) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        openai_client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.completions.create(model=MODEL, prompt="a", temperature=3)
    assert caught.value.param == "temperature"
    stranger = openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    engine.ready = False
    with pytest.raises(openai.InternalServerError, match="not ready"):
        openai_client.completions.create(model=MODEL, prompt="a")


def test_a_failure_in_mid_stream_is_raised(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.fail_after = 2
    engine.failure = GenerationFailed("A worker died.")
    stream = openai_client.completions.create(model=MODEL, prompt="a", stream=True)
    with pytest.raises(openai.APIError, match="A worker died"):
        list(stream)


def test_a_connection_closed_in_mid_stream_aborts(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.pause_after = 3
    stream = openai_client.completions.create(model=MODEL, prompt="a", stream=True)
    next(stream)
    stream.close()
    while not engine.aborted:  # pytest's timeout is the limit
        time.sleep(0.005)
    assert engine.aborted == [engine.admitted[0].request_id]
