"""The routes that the log names for requests that do not reach the router."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from numaserve.server.app import application as app
from numaserve.server.http.access_log import JsonFormatter
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.keys import OPEN_PATHS
from numaserve.server.http.auth.quota import KeyLimits
from numaserve.server.http.browser_rules import BrowserRules
from numaserve.server.http.route_names import API_ROUTES, route_of
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.app_routes import routes_of

KEY = {"Authorization": "Bearer key"}
GUARDED = sorted(path for path in API_ROUTES - OPEN_PATHS if not path.startswith("/ui"))


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestClient]:
    keys = [ApiKey("key", limits=KeyLimits(requests_per_minute=1))]
    browsers = BrowserRules(allowed_hosts=("testserver",))
    with TestClient(app.create_app(make_context(FakeEngine(), keys=keys, browsers=browsers))) as client:
        yield client


def line(caplog: pytest.LogCaptureFixture) -> Any:
    """The last line of a request."""
    records = [each for each in caplog.records if each.name == "numaserve.request"]
    return json.loads(JsonFormatter().format(records[-1]))


def test_the_table_has_every_route_of_the_application_and_no_other() -> None:
    routes = routes_of(make_context(FakeEngine(), ui=True, tokenizer_info=True))
    assert {"/openapi.json", *(each.path for each in routes)} == API_ROUTES


@pytest.mark.parametrize("path", GUARDED)
def test_a_request_without_a_key_names_its_route(
    guarded: TestClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="numaserve")
    sent = path.replace("{name:path}", "some/model").replace("{response_id}", "resp_1")
    assert guarded.post(sent, content=b"{}").status_code == 401
    assert (line(caplog)["status"], line(caplog)["route"]) == (401, path)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {"Host": "elsewhere.example"}),
        (400, {"X-Request-Timeout": "soon"}),
        (431, {f"X-{number}": "x" for number in range(101)}),
        (413, {"Content-Length": str(1 << 40)}),
        (429, {}),
    ],
)
def test_a_request_beyond_a_limit_names_its_route(
    guarded: TestClient, caplog: pytest.LogCaptureFixture, status: int, headers: dict[str, str]
) -> None:
    caplog.set_level(logging.DEBUG, logger="numaserve")
    if status == 429:
        guarded.post("/v1/chat/completions", json={}, headers=KEY)  # the one of this minute, if there is one left
    assert guarded.post("/v1/chat/completions/", json={}, headers=KEY | headers).status_code == status
    assert (line(caplog)["status"], line(caplog)["route"]) == (status, "/v1/chat/completions")


@pytest.mark.parametrize("path", ["/v1/modelsx", "/v1/responses/a/b", "/nope\r\nFAKE", "/V1/models", "//v1/models"])
def test_a_path_of_no_route_is_not_named(path: str) -> None:
    assert route_of({"path": path}) == "unmatched"
