"""The OpenAPI document says what is so: requests are made from it at random, and answers are compared with it."""

import asyncio
import threading
from typing import Any

import httpx
import pytest
from numaserve.server.app.application import create_app
from numaserve.server.http.auth.keys import OPEN_PATHS
from openapi_cases import EVENTS, LINES, judge_requests, load_schema

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.app_routes import DOCUMENTED, WITH_BODIES, operations
from tests.support.error_forms import form_of

STREAMS = {EVENTS, LINES}
EXAMPLES = pytest.mark.parametrize(("of_all", "one_in"), [(200, 5), pytest.param(2000, 1, marks=pytest.mark.slow)])


def test_requests_are_made_for_every_route() -> None:
    described = operations()
    assert described.keys() == set(DOCUMENTED)
    assert {route for route, operation in described.items() if "requestBody" in operation} == set(WITH_BODIES)
    assert sum(1 for _ in load_schema()[0].get_all_operations()) == len(DOCUMENTED)


@EXAMPLES
@pytest.mark.parametrize(("method", "path"), DOCUMENTED)
def test_random_requests_find_the_document_true(method: str, path: str, of_all: int, one_in: int) -> None:
    judge_requests(method, path, of_all // len(DOCUMENTED) + 1, one_in)


@pytest.mark.parametrize(("method", "path"), DOCUMENTED)
def test_a_route_asks_for_a_key_where_it_says_so(method: str, path: str) -> None:
    operation = operations("key")[method, path]
    assert ("security" in operation) == (method != "GET" or path not in OPEN_PATHS)


_TEXTS = {"/metrics", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}


@pytest.mark.parametrize(("method", "path"), DOCUMENTED)
def test_every_route_says_what_it_answers(method: str, path: str) -> None:
    operation = operations()[method, path]
    assert "security" not in operation
    answers = operation["responses"]
    assert "422" not in answers
    [content] = [kind for kind in answers["200"]["content"] if kind not in STREAMS]
    assert content == ("text/plain" if path in _TEXTS else "application/json")
    assert path == "/metrics" or answers["200"]["content"][content]["schema"] != {}
    expected = {"401", "403", "431", "500"}
    if "requestBody" in operation:
        expected |= {"400", "404", "408", "413", "429", "503"}
    assert expected <= set(answers)
    assert all(
        answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2] == form_of(path).schema
        for status, answer in answers.items()
        if status != "200"
    )


async def test_the_document_is_made_once_while_other_requests_are_answered() -> None:
    app, is_answered, made = create_app(make_context(FakeEngine())), threading.Event(), list[dict[str, Any]]()
    make = app.openapi

    def make_late() -> dict[str, Any]:
        assert is_answered.wait(60)
        made.append(make())
        return made[-1]

    app.openapi = make_late  # type: ignore[method-assign]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        leaving, *staying = [asyncio.create_task(client.get("/openapi.json")) for _ in range(3)]
        assert (await client.get("/version")).status_code == 200
        leaving.cancel()
        is_answered.set()
        assert [answer.json() for answer in await asyncio.gather(*staying)] == [made[0]] * 2
    assert len(made) == 1
