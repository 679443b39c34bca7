"""HEAD and slashes at the end, over the application's own routes."""

from collections.abc import Iterator

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.http.auth.keys import OPEN_PATHS
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.app_routes import DOCUMENTED

KEY = "key-of-a-test"
GETS = [path for method, path in DOCUMENTED if method == "GET"]
POSTS = [path for method, path in DOCUMENTED if method == "POST" and path not in GETS]


@pytest.fixture(scope="module")
def without_key() -> Iterator[TestClient]:
    with TestClient(create_app(make_context(FakeEngine(), keys=[KEY]))) as client:
        yield client


@pytest.fixture(scope="module")
def guarded(without_key: TestClient) -> Iterator[TestClient]:
    with TestClient(without_key.app, headers={"Authorization": f"Bearer {KEY}"}) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), DOCUMENTED)
def test_a_slash_at_the_end_makes_no_difference(shared_client: TestClient, method: str, path: str) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "tokens": [1]}
    json = body if method == "POST" and path != "/flush_cache" else None
    plain = shared_client.request(method, path, json=json, follow_redirects=False)
    slash = shared_client.request(method, path + "/", json=json, follow_redirects=False)
    assert plain.status_code == slash.status_code
    assert plain.headers["content-type"] == slash.headers["content-type"]


@pytest.mark.parametrize("path", GETS)
def test_head_is_get_without_a_body(guarded: TestClient, path: str) -> None:
    get, head = guarded.get(path), guarded.head(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", POSTS)
def test_head_of_a_route_without_get_says_what_it_has(guarded: TestClient, path: str) -> None:
    answer = guarded.head(path)
    if path == "/v1/responses/input_tokens":  # may be the id of a response
        assert (answer.status_code, answer.content) == (404, b"")
        return
    assert (answer.status_code, answer.headers["allow"], answer.content) == (405, "POST", b"")


@pytest.mark.parametrize("path", GETS)
@pytest.mark.parametrize("end", ["", "/"])
def test_head_needs_the_key_where_get_does(without_key: TestClient, path: str, end: str) -> None:
    assert (without_key.head(path + end).status_code == 401) == (path not in OPEN_PATHS)


@pytest.mark.parametrize("path", ["//health", "/health//", "//", "/v1//models", "/health%2f"])
def test_more_slashes_are_another_path(guarded: TestClient, path: str) -> None:
    assert guarded.get(f"http://testserver{path}").status_code == 404
