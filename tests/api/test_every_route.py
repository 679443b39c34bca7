"""Over the application's own routes, so that a route is covered on the day it is added."""

from collections.abc import Iterator
from typing import Any

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.http.auth.keys import OPEN_PATHS
from numaserve.server.http.ui_files import ui_files
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, FakeEngine, make_context
from tests.support.app_routes import ROUTES, WITH_BODIES
from tests.support.error_forms import error_message

KEY = "key-of-a-test"
DEEP = 100_000


GUARDED = [(method, path) for method, path in ROUTES if path not in OPEN_PATHS]

GARBAGE = {
    "nothing": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"model": "\xff"}',
    "null": b"null",
    "a number": b"1",
    "a string": b'"x"',
    "a list": b"[]",
    "an empty object": b"{}",
    "a deep list": b"[" * DEEP + b"]" * DEEP,
    "a deep object": b'{"model":' * DEEP + b"1" + b"}" * DEEP,
    "a deep field": b'{"metadata":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a bare NaN": b"NaN",
    "NaN in a field": b'{"temperature": NaN, "messages": NaN, "prompt": NaN, "tokens": NaN}',
    "a huge integer": b'{"n": ' + b"9" * 10_000 + b"}",
    "a large integer": b'{"messages": ' + b"9" * 400 + b', "prompt": [' + b"9" * 400 + b'], "tokens": [1e400]}',
    "an unknown field": b'{"unheard of": 1}',
    "half a character as a field": b'{"\\ud800": 1}',
    "a zero byte as a field": b'{"\\u0000\\r\\n": 1}',
    "another model": b'{"model": "\\ud800", "prompt": "x", "tokens": [], "messages": []}',
    "prototype pollution": b'{"__proto__": {}, "constructor": {}, "__class__": 1}',
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestClient]:
    with TestClient(create_app(make_context(FakeEngine(), keys=["other-key", KEY]))) as client:
        yield client


def test_the_routes_are_those_that_clients_expect() -> None:
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/livez",
        "/readyz",
        "/version",
        "/server_info",
        "/get_model_info",
        "/flush_cache",
        "/metrics",
    } <= {path for _, path in ROUTES}


@pytest.mark.spread("headers")
@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": KEY},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY} {KEY}"},
        {"X-Api-Key": f"{KEY}x"},
        {"X-Api-Key": f"Bearer {KEY}"},
        {"X-Api-Key": KEY, "Authorization": "Bearer other"},
        [("X-Api-Key", KEY), ("X-Api-Key", KEY)],
        [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer other")],
    ],
)
def test_a_guarded_route_refuses_a_request_without_the_key(
    guarded: TestClient, method: str, path: str, headers: Any
) -> None:
    answer = guarded.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "API key" in error_message(answer)


def test_the_refusal_has_a_code_for_programs(guarded: TestClient) -> None:
    assert guarded.get("/v1/models").json()["error"]["code"] == "invalid_api_key"


@pytest.mark.spread("headers")
@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"bearer {KEY}"},
        {"X-Api-Key": KEY},
        {"X-Api-Key": KEY, "Authorization": f"Bearer {KEY}"},
    ],
)
def test_a_guarded_route_lets_the_key_in(guarded: TestClient, method: str, path: str, headers: dict[str, str]) -> None:
    assert guarded.request(method, path, headers=headers).status_code != 401


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_the_probes_need_no_key(guarded: TestClient, path: str) -> None:
    assert guarded.get(path).status_code == 200
    assert guarded.get(path + "/").status_code == 200


@pytest.mark.spread("method")
@pytest.mark.parametrize("path", [*sorted(OPEN_PATHS), *ui_files()])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_what_is_open_to_all_is_open_to_those_who_read_it_alone(guarded: TestClient, method: str, path: str) -> None:
    assert guarded.request(method, path, content=b"{}").status_code == 401
    assert guarded.request(method, path, content=b"{}", headers={"X-Api-Key": KEY}).status_code in {200, 405}


@pytest.mark.parametrize("path", ["//health", "/health/../v1/models", "/HEALTH", "/health%2f", "/health;/v1/models"])
def test_a_path_that_only_looks_like_a_probe_is_guarded(guarded: TestClient, path: str) -> None:
    assert guarded.get(f"http://testserver{path}").status_code == 401


@pytest.mark.spread("kind")
@pytest.mark.parametrize(("method", "path"), WITH_BODIES)
@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_the_client_s_error(
    renewed_client: TestClient, renewed_engine: FakeEngine, method: str, path: str, kind: str
) -> None:
    answer = renewed_client.request(method, path, content=GARBAGE[kind], headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    error_message(answer)
    assert renewed_engine.admitted == []


@pytest.mark.spread("content_type")
@pytest.mark.parametrize(("method", "path"), WITH_BODIES)
@pytest.mark.parametrize("content_type", ["", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
def test_a_body_that_is_not_called_json_is_refused(
    renewed_client: TestClient, renewed_engine: FakeEngine, method: str, path: str, content_type: str
) -> None:
    # A page in a browser may send these across origins without asking.
    content = b'{"model": "%s", "prompt": "x", "tokens": [1]}' % MODEL.encode()
    pages = [{"Origin": "http://testserver"}, {"Sec-Fetch-Site": "same-origin"}]
    for page in pages if path.startswith("/api/") else [{}, *pages]:
        answer = renewed_client.request(method, path, content=content, headers={"Content-Type": content_type, **page})
        assert answer.status_code == 400
        error_message(answer)
    assert renewed_engine.admitted == []


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_another_method_is_refused(renewed_client: TestClient, method: str, path: str) -> None:
    answer = renewed_client.request("DELETE", path)
    assert answer.status_code in (404, 405)
    error_message(answer)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_answer_has_a_request_id(renewed_client: TestClient, method: str, path: str) -> None:
    given = renewed_client.request(method, path, headers={"X-Request-Id": "abc-123.x:y_z"})
    assert given.headers["x-request-id"] == "abc-123.x:y_z"
    made = renewed_client.request(method, path)
    assert made.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("bad", ["", "x" * 129, "a b", "a;b", "ä", "<script>", 'a"b'])
def test_a_harmful_request_id_is_replaced(renewed_client: TestClient, bad: str) -> None:
    answer = renewed_client.get("/version", headers={b"X-Request-Id": bad.encode("latin-1")})
    assert answer.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_more_headers_than_anybody_needs_are_refused(
    renewed_client: TestClient, renewed_engine: FakeEngine, method: str, path: str
) -> None:
    answer = renewed_client.request(method, path, headers=[(f"x-{index}", "y") for index in range(101)])
    assert answer.status_code == 431
    error_message(answer)
    assert renewed_engine.admitted == []
