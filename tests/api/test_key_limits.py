"""Requests beyond the limits of their key, which the key file has."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response
from numaserve.server.app.application import ApiContext, create_app
from numaserve.server.app.middleware.key_limits import FREE_PATHS
from numaserve.server.generation.purpose import Embeds, Purpose
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.quota import KeyLimits
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, MODEL, REPLY, FakeEngine, make_context, outcomes
from tests.support.app_routes import ROUTES
from tests.support.error_forms import error_message

KEY = "key-of-a-test"
OTHER = "key-of-another"
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5, "model": MODEL},
    "/api/chat": {"messages": MESSAGES, "model": MODEL, "stream": False},
    "/api/generate": {"prompt": "hi", "model": MODEL, "stream": False},
    "/generate": {"text": "hi"},
}


class Passing:
    """A clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Served:
    """A server on which `KEY` has limits and `OTHER` has none. One serves all tests: to make it takes a second."""

    def __init__(self, purpose: Purpose | None = None) -> None:
        self.clock = Passing()
        self.engine = FakeEngine()
        self.context: ApiContext = make_context(self.engine, keys=[OTHER], clock=self.clock, purpose=purpose)
        self.app = create_app(self.context)
        self._client = TestClient(self.app, raise_server_exceptions=False)

    def limited(self, **limits: int) -> "Served":
        """The server as if nothing had been asked of it, with these limits of `KEY`."""
        vars(self.engine).update(vars(FakeEngine()))
        self.replace(ApiKey(OTHER))
        self.replace(ApiKey(KEY, limits=KeyLimits(**limits)), ApiKey(OTHER))
        return self

    def replace(self, *keys: ApiKey) -> None:
        """Let the key file say something else."""
        assert self.context.api_keys is not None
        self.context.api_keys.replace(keys)

    def post(self, path: str = "/v1/completions", key: str = KEY, **fields: Any) -> Response:
        return self._client.post(path, json={**BODIES.get(path, {}), **fields}, headers={"X-Api-Key": key})

    def send(self, method: str, path: str, body: bytes = b"") -> Response:
        return self._client.request(method, path, content=body, headers={"X-Api-Key": KEY})

    def clients(self) -> AsyncClient:
        return AsyncClient(
            transport=ASGITransport(self.app), base_url="http://x", headers={"X-Api-Key": KEY}, timeout=10
        )


@pytest.fixture(scope="module")
def shared() -> Served:
    return Served()


@pytest.fixture(params=sorted(BODIES))
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def test_a_request_beyond_the_limit_is_refused_by_each_surface_in_its_form(shared: Served, path: str) -> None:
    served = shared.limited(requests_per_minute=2)
    before = outcomes(served.context, "over_limit")
    assert [served.post(path).status_code for _ in range(2)] == [200, 200]
    answer = served.post(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
    assert error_message(answer) == "This API key has reached its limit: 2 requests per minute. Retry after 30 s."
    assert outcomes(served.context, "over_limit") == before + 1
    assert outcomes(served.context, "queue_full") == 0
    assert len(served.engine.admitted) == 2
    served.clock.now += 30
    assert served.post(path).status_code == 200


def test_another_key_is_not_concerned(shared: Served) -> None:
    served = shared.limited(requests_per_minute=1)
    assert [served.post().status_code, served.post().status_code] == [200, 429]
    answers = [served.post(key=OTHER) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert not any(name.startswith("x-ratelimit") for answer in answers for name in answer.headers)


def test_a_refused_body_is_not_read(shared: Served) -> None:
    served = shared.limited(requests_per_minute=1)
    served.post()
    assert served.send("POST", "/v1/completions", b"[" * 2**21).status_code == 429


def test_what_is_refused_for_itself_counts_like_any_other_request(shared: Served) -> None:
    served = shared.limited(requests_per_minute=2)
    assert served.post(temperature=7).status_code == 400
    assert served.send("POST", "/no/such/route").status_code == 404
    assert served.post().status_code == 429


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_tells_what_is_left_its_own_prompt_taken_off(shared: Served, path: str, stream: bool) -> None:
    served = shared.limited(requests_per_minute=10, tokens_per_minute=6000)
    answer = served.post(path, stream=stream)
    told = answer.headers
    assert answer.status_code == 200
    assert (told["x-ratelimit-limit-requests"], told["x-ratelimit-remaining-requests"]) == ("10", "9")
    assert told["x-ratelimit-reset-requests"] == "6s"
    prompt = len(served.engine.admitted[0].prompt)
    assert told["x-ratelimit-limit-tokens"] == "6000"
    assert 0 < int(told["x-ratelimit-remaining-tokens"]) <= 6000 - prompt


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_those_of_usage(shared: Served, stream: bool) -> None:
    served = shared.limited(tokens_per_minute=6000)
    used = served.post("/v1/completions", prompt=["hi", "you"], n=3, max_tokens=99).json()["usage"]
    assert used["completion_tokens"] == 6 * (len(REPLY.encode()) + 1)
    served.post("/v1/completions", prompt=["hi", "you"], n=3, max_tokens=99, stream=stream)
    left = 6000 - 2 * used["total_tokens"]
    served.post(key=OTHER)
    refused = served.send("POST", "/no/such/route")
    assert refused.headers["x-ratelimit-remaining-tokens"] == str(left)


def test_the_tokens_of_a_list_of_texts_count_and_the_list_as_one_request(shared: Served) -> None:
    served = Served(Embeds(EMBEDDING_SIZE)).limited(requests_per_minute=10, tokens_per_minute=60)
    answer = served.post("/v1/embeddings", input=["x" * 24] * 4)
    assert answer.json()["usage"]["total_tokens"] == 100
    assert answer.headers["x-ratelimit-remaining-requests"] == "9"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
    assert served.post("/v1/embeddings", input="x").headers["retry-after"] == "41"


def test_what_a_long_answer_overdraws_is_earned_before_the_next_request(shared: Served) -> None:
    served = shared.limited(tokens_per_minute=6)
    used = served.post(max_tokens=99).json()["usage"]["total_tokens"]
    refused = served.post()
    assert refused.headers["retry-after"] == str((used - 6 + 1) * 10)
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_requests_at_once_are_freed_by_their_ends_and_by_clients_that_leave(shared: Served) -> None:
    served = shared.limited(concurrent=2)
    served.engine.pause_after = 2
    async with served.clients() as client:
        asking = [asyncio.create_task(client.post("/generate", json={"text": "hi", "rid": rid})) for rid in "ab"]
        while len(served.engine.admitted) < 2:
            await asyncio.sleep(0)
        refused = await client.post("/generate", json={"text": "hi"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert (
            refused.json()["error"]["message"]
            == "This API key has reached its limit: 2 concurrent requests. Retry after 1 s."
        )
        assert (await client.post("/abort_request", json={"rid": "a"})).json() == {"aborted": 1}
        assert (await asking[0]).status_code == 200
        asking[1].cancel()
        await asyncio.gather(asking[1], return_exceptions=True)
        while len(served.engine.aborted) < 2:
            await asyncio.sleep(0)
        served.engine.pause_after = None
        answers = await asyncio.gather(*(client.post("/generate", json={"text": "hi"}) for _ in range(2)))
        assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize(
    ("method", "path"), [route for route in ROUTES if route[0] != "POST" or route[1] in FREE_PATHS]
)
def test_what_runs_no_model_is_not_limited(shared: Served, method: str, path: str) -> None:
    served = shared.limited(requests_per_minute=1)
    assert [served.send(method, path).status_code for _ in range(2)].count(429) == 0
    assert served.post().status_code == 200
    assert served.send(method, path).status_code != 429


@pytest.mark.parametrize("path", sorted(path for method, path in ROUTES if method == "POST" and path not in FREE_PATHS))
def test_every_other_route_is_limited_from_the_day_it_is_added_on(shared: Served, path: str) -> None:
    served = shared.limited(requests_per_minute=1)
    served.send("POST", path)
    assert served.send("POST", path).status_code == 429


def test_two_keys_of_one_request_are_no_third_one(shared: Served) -> None:
    served = shared.limited(requests_per_minute=1)
    both = {"X-Api-Key": OTHER, "Authorization": f"Bearer {KEY}"}
    with TestClient(served.app) as client:
        statuses = [client.post("/v1/completions", json={"prompt": "hi"}, headers=both).status_code for _ in range(2)]
    assert statuses == [200, 429]
    assert served.post().status_code == 429


def test_limits_that_were_changed_count_at_once_and_what_was_used_stays_used(shared: Served) -> None:
    served = shared.limited(requests_per_minute=2)
    served.post()
    served.replace(ApiKey(KEY, limits=KeyLimits(requests_per_minute=1)))
    assert served.post().status_code == 429
    served.replace(ApiKey(KEY))
    assert served.post().status_code == 200


def test_log_and_metrics_call_a_key_by_its_name(shared: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="numaserve.request")
    served = shared.limited()
    served.replace(ApiKey(KEY, "alice", limits=KeyLimits(requests_per_minute=1)), ApiKey(OTHER))
    for key in (KEY, KEY, OTHER):
        served.post(key=key)
    names = [vars(record)["fields"].get("key") for record in caplog.records]
    assert names == ["alice", "alice", None]
    labels = {"model_name": MODEL, "key": "alice"}
    assert served.context.metrics.registry.get_sample_value("numaserve_requests_over_limit_total", labels) == 1


def test_no_part_of_a_key_is_told_or_logged(shared: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    served = shared.limited(requests_per_minute=1)
    answers = [served.post(), served.post(), served.send("GET", "/metrics")]
    logged = "".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert KEY not in logged + "".join(answer.text + str(answer.headers) for answer in answers)
