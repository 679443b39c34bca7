"""Every answer of the API is the recorded one, see `tests.transcripts`."""

import difflib
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.app.application import create_app
from starlette.routing import Match, Route

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.app_routes import document
from tests.transcripts.form import FILES, Exchange, read
from tests.transcripts.replay import WAYS, Clients

EXCHANGES = [each for file in FILES for scene in read(file) for each in scene.exchanges]
_STREAMED = ("text/event-stream", "application/x-ndjson")


@pytest.fixture(scope="module", params=WAYS)
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    with Clients(WAYS[request.param]) as clients:
        yield clients


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_answer_is_the_recorded_one(clients: Clients, file: Path) -> None:
    texts = (text.splitlines() for text in (file.read_text(), clients.replayed(file)))
    if found := [*difflib.unified_diff(*texts, "recorded", "now", n=1, lineterm="")]:
        pytest.fail("\n".join([*found, "python -m tests.transcripts --record"]), pytrace=False)


def status(exchange: Exchange) -> str:
    return next(line for line in exchange.recorded if line.startswith("<"))


def test_every_route_has_a_transcript_of_an_answer_that_is_no_error() -> None:
    app = create_app(make_context(FakeEngine()))
    routes = [each for each in app.routes if isinstance(each, Route)]
    answered = set[tuple[str, str]]()
    for each in EXCHANGES:
        if status(each).startswith("< 2"):
            scope = {"type": "http", "method": each.method, "path": each.path.partition("?")[0]}
            answered |= {(each.method, route.path) for route in routes if route.matches(scope)[0] == Match.FULL}
    assert {(method, route.path) for route in routes for method in route.methods or ()} - answered == set()


def test_every_stream_has_a_transcript() -> None:
    streams = {
        path
        for path, methods in document()["paths"].items()
        for method in methods.values()
        if any(kind in str(method["responses"].get("200")) for kind in _STREAMED)
    }
    streamed = {each.path for each in EXCHANGES if any(kind in status(each) for kind in _STREAMED)}
    assert streams
    assert streams - streamed == set()
