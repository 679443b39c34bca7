"""Every answer of the API is the recorded one, see `tests.transcripts`."""

import difflib
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.http.route_names import API_ROUTES
from numaserve.server.http.ui_files import ui_files
from starlette.routing import compile_path

from tests.support.app_routes import document, operations
from tests.transcripts.form import FILES, Exchange, read
from tests.transcripts.replay import Clients

EXCHANGES = [each for file in FILES for scene in read(file) for each in scene.exchanges]
_STREAMED = ("text/event-stream", "application/x-ndjson")


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with Clients() as clients:
        yield clients


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_answer_is_the_recorded_one(clients: Clients, file: Path) -> None:
    texts = (text.splitlines() for text in (file.read_text(), clients.replayed(file)))
    if found := [*difflib.unified_diff(*texts, "recorded", "now", n=1, lineterm="")]:
        pytest.fail("\n".join([*found, "python -m tests.transcripts --record"]), pytrace=False)


def status(exchange: Exchange) -> str:
    return next(line for line in exchange.recorded if line.startswith("<"))


def test_every_route_has_a_transcript_of_an_answer_that_is_no_error() -> None:
    answered = [(each.method, each.path.partition("?")[0]) for each in EXCHANGES if status(each).startswith("< 2")]

    def is_answered(method: str | None, template: str) -> bool:
        pattern, _, _ = compile_path(template)
        return any(method in (None, asked) and pattern.match(path) for asked, path in answered)

    routes = [*operations(), *((None, path) for path in API_ROUTES - ui_files().keys())]
    assert [route for route in routes if not is_answered(*route)] == []


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
