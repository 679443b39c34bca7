"""Pages in a browser, over the application's own routes: foreign ones are refused, named ones are served."""

from collections.abc import Iterator
from typing import Any

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.http.browser_rules import BrowserRules
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.app_routes import ROUTES
from tests.support.error_forms import error_message

ORIGIN = "https://chat.example.com"
KEY = "key-of-a-test"


def app_client(rules: BrowserRules, *, keys: tuple[str, ...] = ()) -> TestClient:
    app = create_app(make_context(FakeEngine(), browsers=rules, keys=keys))
    return TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


FOREIGN_PAGES = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1.evil.example:8000"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:8000"},
]


@pytest.fixture(scope="module")
def local() -> Iterator[TestClient]:
    with app_client(BrowserRules(open_locally=True)) as client:
        yield client


def assert_refused(answer: Any, option: str) -> None:
    assert answer.status_code == 403
    assert option in error_message(answer)
    assert answer.headers["x-request-id"]
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.spread("headers")
@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("headers", FOREIGN_PAGES)
def test_a_foreign_page_is_refused(local: TestClient, method: str, path: str, headers: dict[str, str]) -> None:
    assert_refused(local.request(method, path, headers=headers), "--cors-origin")


@pytest.mark.spread("host")
@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]"]
)
def test_a_name_that_is_not_this_machine_s_is_refused(local: TestClient, method: str, path: str, host: str) -> None:
    assert_refused(local.request(method, path, headers={"Host": host}), "--allowed-host")


def test_the_error_has_a_code_for_programs(local: TestClient) -> None:
    answer = local.get("/v1/models", headers=FOREIGN_PAGES[0])
    assert answer.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.1.2.3:80", "[::1]:8000"]
)
def test_local_names_are_served(local: TestClient, host: str) -> None:
    assert local.get("/version", headers={"Host": host}).status_code == 200


OWN_PAGES = [
    {"Origin": "http://127.0.0.1:8000"},
    {"Origin": "http://localhost:3000"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
    {"Sec-Fetch-Site": "none"},
    {},
]


@pytest.mark.parametrize("headers", OWN_PAGES)
def test_pages_and_programs_of_this_machine_are_served(local: TestClient, headers: dict[str, str]) -> None:
    answer = local.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_a_named_origin_is_served_and_may_read_the_answer() -> None:
    client = app_client(BrowserRules(cors_origins=(ORIGIN,), open_locally=True))
    headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"}
    answer = client.post("/v1/completions", json={"prompt": "x", "unheard_of": 1}, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "X-Numaserve-Ignored" in answer.headers["access-control-expose-headers"]
    assert_refused(client.get("/version", headers={"Origin": "https://evil.example"}), "--cors-origin")


@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_a_preflight_of_a_named_origin_is_answered_without_a_key(keys: tuple[str, ...]) -> None:
    client = app_client(BrowserRules(cors_origins=(ORIGIN,)), keys=keys)
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    answer = client.options("/v1/chat/completions", headers={"Origin": ORIGIN, **ask})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert_refused(client.options("/v1/chat/completions", headers={"Origin": "https://evil.example", **ask}), "--cors")


def test_any_origin_may_be_allowed() -> None:
    client = app_client(BrowserRules(cors_origins=("*",)))
    answer = client.get("/version", headers={"Origin": "https://any.example"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


def test_a_key_protects_from_foreign_pages_as_well() -> None:
    client = app_client(BrowserRules(), keys=(KEY,))
    foreign = {"Origin": "app://a.program"}
    assert client.get("/v1/models", headers=foreign).status_code == 401
    assert client.get("/v1/models", headers={**foreign, "Authorization": f"Bearer {KEY}"}).status_code == 200


def test_elsewhere_than_on_loopback_any_name_will_do_unless_some_are_given() -> None:
    anywhere, named = app_client(BrowserRules()), app_client(BrowserRules(allowed_hosts=("llm.example.com",)))
    assert anywhere.get("/version", headers={"Host": "other.example"}).status_code == 200
    assert named.get("/version", headers={"Host": "LLM.example.com:443"}).status_code == 200
    assert named.get("/version", headers={"Host": "127.0.0.1"}).status_code == 200
    assert_refused(named.get("/version", headers={"Host": "other.example"}), "--allowed-host")
