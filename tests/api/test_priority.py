"""`priority`: which of a client's own requests begins earlier."""

import functools
from typing import Any

import pytest
from numaserve.server.app.application import create_app
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Embeds, Generates
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, FakeEngine, make_context
from tests.support.error_forms import error_message

MESSAGES = [{"role": "user", "content": "hi"}]
# As in vLLM a lower number is earlier; in SGLang's own API a higher one is.
LOWER_FIRST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "n": 2},
    "/v1/completions": {"prompt": ["hi", "you"]},
    "/v1/responses": {"input": "hi"},
}
HIGHER_FIRST: dict[str, dict[str, Any]] = {"/generate": {"text": ["hi", "you"]}}
EMBEDS: dict[str, dict[str, Any]] = {"/v1/embeddings": {"input": ["a", "b"]}}
JUDGES: dict[str, dict[str, Any]] = {
    "/v1/rerank": {"query": "q", "documents": ["a", "b"]},
    "/v1/score": {"text_1": "q", "text_2": ["a", "b"]},
}
GENERATES = LOWER_FIRST | HIGHER_FIRST
ALL = GENERATES | EMBEDS | JUDGES


class Server:
    """What is asked of one that serves `path`."""

    def __init__(self, path: str) -> None:
        self.engine = FakeEngine()
        self._path = path
        generates = Generates(Judge(yes=1, no=2) if path in JUDGES else None)
        purpose = Embeds(EMBEDDING_SIZE) if path in EMBEDS else generates
        context = make_context(self.engine, purpose=purpose, context_length=2000)
        self._http = TestClient(create_app(context))

    def post(self, **fields: Any) -> Any:
        return self._http.post(self._path, json=ALL[self._path] | fields)

    def priorities(self) -> set[int]:
        found = {request.priority for request in self.engine.admitted}
        self.engine.admitted.clear()
        return found


server_of = functools.cache(Server)  # to make one takes a second


@pytest.mark.parametrize("path", ALL)
def test_every_sequence_of_a_request_has_its_priority(path: str) -> None:
    server = server_of(path)
    sign = -1 if path in HIGHER_FIRST else 1
    for priority in (7, -1000, 1000, 0, None):
        assert server.post(priority=priority).status_code == 200
        assert server.priorities() == {sign * (priority or 0)}
    assert server.post().status_code == 200
    assert server.priorities() == {0}


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize("priority", [1001, -1001, 10**400, 0.5, "1", True, [1]])
def test_a_priority_that_is_no_number_in_its_range_is_refused_by_name(path: str, priority: object) -> None:
    server = server_of(path)
    answer = server.post(priority=priority)
    assert answer.status_code == 400
    assert "priority" in error_message(answer)
    assert answer.json()["error"]["param"] == "priority"
    assert server.engine.admitted == []
