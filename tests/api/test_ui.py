"""GET /ui: what browsers are told of it, and who may have it. What it does is tried in a browser by `make test-ui`."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.http.browser_rules import BrowserRules
from numaserve.server.http.ui_files import PAGE, ui_files
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context

SOURCES = Path(__file__).resolve().parents[2] / "server" / "ui"
KEY = "key-of-a-test"
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PATHS = sorted(ui_files())


class Elements(HTMLParser):
    """What a page names and what stands in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@pytest.fixture(scope="module")
def guarded() -> TestClient:
    return TestClient(create_app(make_context(FakeEngine(), keys=[KEY])))


def test_every_file_of_the_source_is_in_what_is_installed() -> None:
    names = {path.removeprefix(f"{PAGE}/") if path != PAGE else "index.html" for path in PATHS}
    assert names == {file.name for file in SOURCES.iterdir()}
    assert ui_files()[PAGE].content == (SOURCES / "index.html").read_bytes()


@pytest.mark.parametrize("path", PATHS)
def test_a_file_is_served_to_all_under_a_strict_policy(guarded: TestClient, path: str) -> None:
    answer = guarded.get(path)
    assert (answer.status_code, answer.content) == (200, ui_files()[path].content)
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(rule.partition(" ")[::2] for rule in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    fetched = [policy[f"{kind}-src"] for kind in ("script", "style", "connect")]
    assert fetched == ["'self'"] * 3
    assert policy["img-src"] == "'self' blob:"  # no data:, which a model could write
    assert policy["require-trusted-types-for"] == "'script'"
    assert not re.search("unsafe|https?:|data:|[*]", answer.headers["content-security-policy"])


@pytest.mark.parametrize("path", [f"{PAGE}/nothing.js", f"{PAGE}x", f"{PAGE}//main.js", "/UI"])
def test_what_only_looks_like_a_file_of_it_asks_for_a_key(guarded: TestClient, path: str) -> None:
    assert guarded.get(f"http://testserver{path}").status_code == 401


def test_what_the_page_shows_asks_for_a_key(guarded: TestClient) -> None:
    for path in ("/machine", "/v1/models", "/server_info"):
        assert guarded.get(path).status_code == 401


def test_a_slash_at_the_end_leads_to_the_page(guarded: TestClient) -> None:
    answer = guarded.get(f"{PAGE}/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "../ui")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_root_leads_browsers_to_the_page_and_nobody_else(guarded: TestClient, method: str) -> None:
    answer = guarded.request(method, "/", headers=BROWSER, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"], answer.headers["vary"]) == (307, "ui", "Accept")
    assert guarded.get("/", headers=BROWSER).content == ui_files()[PAGE].content
    for accept in ("*/*", "application/json"):
        answer = guarded.get("/", headers={"Accept": accept}, follow_redirects=False)
        assert (answer.status_code, answer.text, answer.headers["vary"]) == (200, "Ollama is running", "Accept")


@pytest.mark.parametrize("path", ["/", "/llm", "/llm/"])
def test_the_root_behind_a_proxy_leads_to_the_page_there(path: str) -> None:
    client = TestClient(create_app(replace(make_context(FakeEngine()), root_path="/llm")))
    answer = client.get(path, headers=BROWSER, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/llm/ui")


def test_an_operator_can_do_without_it() -> None:
    client = TestClient(create_app(make_context(FakeEngine(), ui=False)))
    assert {client.get(path).status_code for path in PATHS} == {404}
    assert client.get("/", headers=BROWSER).status_code == 404
    with_keys = TestClient(create_app(make_context(FakeEngine(), keys=[KEY], ui=False)))
    assert {with_keys.get(path).status_code for path in PATHS} == {401}


def test_it_is_there_under_the_prefix_of_a_proxy() -> None:
    client = TestClient(create_app(replace(make_context(FakeEngine(), keys=[KEY]), root_path="/llm")))
    assert {client.get(f"/llm{path}").status_code for path in PATHS} == {200}


def test_foreign_pages_and_names_do_not_get_it() -> None:
    app = create_app(make_context(FakeEngine(), browsers=BrowserRules(open_locally=True)))
    client = TestClient(app, base_url="http://127.0.0.1:8000")
    assert client.get(PAGE, headers={"Sec-Fetch-Site": "none"}).status_code == 200
    assert client.get(PAGE, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.get(PAGE, headers={"Host": "evil.example"}).status_code == 403


def test_the_page_names_its_own_files_and_has_nothing_inline() -> None:
    elements = Elements(ui_files()[PAGE].content.decode())
    named = {value for name, value in elements.attributes if name in ("src", "href")}
    assert named
    assert {f"/{value}" for value in named} <= set(PATHS)
    assert not [name for name, _ in elements.attributes if name == "style" or name.startswith("on")]
    assert "style" not in elements.tags


@pytest.mark.parametrize("path", [path for path in PATHS if path.endswith(".js")])
def test_a_module_makes_no_markup_of_text_and_loads_nothing_from_elsewhere(path: str) -> None:
    source = ui_files()[path].content.decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", source)
    imported = re.findall(r'^import .* from "(.*)";$', source, re.M)
    assert {f"{PAGE}/{name.removeprefix('./')}" for name in imported} <= set(PATHS)
    addresses = re.findall(r"https?://[^/\s\"]+", re.sub(r"^\s*//.*$", "", source, flags=re.M))
    assert set(addresses) <= {"http://www.w3.org"}  # the name of SVG
