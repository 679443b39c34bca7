"""The OpenAPI document says what is so: requests are made from it at random, and answers are compared with it."""

from __future__ import annotations

from typing import Any

import pytest
from api_fakes import FakeEngine, make_context
from hypothesis import HealthCheck, settings
from numaserve.server.api.app import create_app
from numaserve.server.api.auth import OPEN_PATHS
from openapi_cases import judge, schema

OPERATIONS = 18
FEW, MANY = 200 // OPERATIONS + 1, 2000 // OPERATIONS + 1  # for each of them
RANDOM = {"derandomize": True, "deadline": None, "suppress_health_check": list(HealthCheck)}


def test_there_are_as_many_operations_as_the_cases_are_divided_among() -> None:
    assert sum(1 for _ in schema.get_all_operations()) == OPERATIONS


@schema.parametrize()
@settings(max_examples=FEW, **RANDOM)
def test_random_requests_find_the_document_true(case: Any) -> None:
    judge(case)


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=MANY, **RANDOM)
def test_many_random_requests_find_the_document_true(case: Any) -> None:
    judge(case)


def _operations(keys: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    paths = create_app(make_context(FakeEngine(), keys=keys)).openapi()["paths"]
    return [(path, operation) for path, methods in paths.items() for operation in methods.values()]


@pytest.mark.parametrize(("path", "operation"), _operations(("key",)))
def test_a_route_asks_for_a_key_where_it_says_so(path: str, operation: dict[str, Any]) -> None:
    assert ("security" in operation) == (path not in OPEN_PATHS)


@pytest.mark.parametrize(("path", "operation"), _operations(()))
def test_every_route_says_what_it_answers(path: str, operation: dict[str, Any]) -> None:
    assert "security" not in operation
    answers = operation["responses"]
    assert "422" not in answers
    [content] = [kind for kind in answers["200"]["content"] if kind != "text/event-stream"]
    assert content == ("text/plain" if path == "/metrics" else "application/json")
    assert path == "/metrics" or answers["200"]["content"][content]["schema"] != {}
    expected = {"401", "403", "431", "500"}
    if "requestBody" in operation:
        expected |= {"400", "404", "408", "413", "429", "503"}
    assert expected <= set(answers)
    assert all(
        answer["content"]["application/json"]["schema"]["$ref"].endswith("/Error")
        for status, answer in answers.items()
        if status != "200"
    )
