"""Behind a proxy with a prefix, which some proxies take off and others do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.http.auth.keys import OPEN_PATHS
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.app_routes import DOCUMENTED

KEY = {"Authorization": "Bearer key-of-a-test"}
PREFIX = "/llm/v2"
ROUTES = [*DOCUMENTED, ("GET", "/openapi.json"), ("GET", "/no/such/route")]
GUARDED = [(method, path) for method, path in ROUTES if path not in OPEN_PATHS]


@contextmanager
def client_under(prefix: str, *keys: str) -> Iterator[TestClient]:
    app = create_app(replace(make_context(FakeEngine(), keys=keys), root_path=prefix))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def plain() -> Iterator[TestClient]:
    with client_under("") as client:
        yield client


@pytest.fixture(scope="module")
def prefixed() -> Iterator[TestClient]:
    with client_under(PREFIX) as client:
        yield client


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestClient]:
    with client_under(PREFIX, "key-of-a-test") as client:
        yield client


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_answers_with_and_without_the_prefix(
    plain: TestClient, prefixed: TestClient, method: str, path: str
) -> None:
    expected = plain.request(method, path)
    for asked in (path, PREFIX + path):
        answer = prefixed.request(method, asked)
        assert answer.status_code == expected.status_code
        if expected.status_code == 404:
            assert answer.json() == expected.json()


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_prefix_there_is_none(plain: TestClient, method: str, path: str) -> None:
    assert plain.request(method, PREFIX + path).status_code == 404


@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_a_guarded_route_asks_for_the_key_with_and_without_the_prefix(
    guarded: TestClient, method: str, path: str, prefix: str
) -> None:
    assert guarded.request(method, prefix + path).status_code == 401
    assert guarded.request(method, prefix + path, headers=KEY).status_code != 401


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_the_probes_are_open_with_and_without_the_prefix(guarded: TestClient, path: str, prefix: str) -> None:
    assert guarded.get(prefix + path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        f"{PREFIX}health",
        f"{PREFIX}//health",
        f"/{PREFIX}/health",
        f"{PREFIX}{PREFIX}/health",
        f"{PREFIX}/../health",
        f"{PREFIX}/health/../v1/models",
        f"{PREFIX}/HEALTH",
        "/LLM/v2/health",
        "/llm/health",
        "/v2/health",
        f"/health{PREFIX}/v1/models",
        f"{PREFIX}%2f%2fhealth",
    ],
)
def test_a_path_that_only_looks_like_a_probe_is_guarded(guarded: TestClient, path: str) -> None:
    assert guarded.get(f"http://testserver{path}").status_code == 401


@pytest.mark.parametrize("prefix", [*sorted(OPEN_PATHS - {"/"}), "/v1"])
def test_no_prefix_opens_a_guarded_route(prefix: str) -> None:
    with client_under(prefix, "key-of-a-test") as client:
        for method, path in GUARDED:
            assert client.request(method, path).status_code == 401
            assert client.request(method, prefix + path).status_code == 401


def test_the_prefix_is_taken_off_once(prefixed: TestClient) -> None:
    assert prefixed.get(f"{PREFIX}{PREFIX}/version").status_code == 404


def test_the_schema_names_the_prefix_as_the_server(prefixed: TestClient, plain: TestClient) -> None:
    for path in ("/openapi.json", f"{PREFIX}/openapi.json"):
        assert prefixed.get(path).json()["servers"] == [{"url": PREFIX}]
    assert "servers" not in plain.get("/openapi.json").json()
