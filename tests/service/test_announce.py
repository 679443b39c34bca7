"""The line that ends the start, and the request in it."""

import json
import shlex
from typing import Any

import pytest
from numaserve.server.config.serve import Task
from numaserve.server.connection.listen import bind_listener
from numaserve.server.http.fields.types import Strict
from numaserve.server.service.announce import announce, example_for
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.surfaces.openai.completion_schema import CompletionRequest
from numaserve.server.surfaces.openai.embedding_schema import EmbeddingRequest
from numaserve.server.surfaces.rerank.schema import RerankRequest

MODEL = "tiny"


def pasted(capsys: pytest.CaptureFixture[str], task: Task, *, has_chat_template: bool = True) -> tuple[str, Any]:
    """The path and the body of the request in the line."""
    with bind_listener("127.0.0.1", 0) as listener:
        announce(MODEL, listener, example_for(task, has_chat_template=has_chat_template), needs_key=False)
        line = capsys.readouterr().out
        assert line.startswith(f"{MODEL} is served at {listener.url} - try: curl ")
        words = shlex.split(line.partition(" - try: ")[2])
        return words[1].removeprefix(listener.url), json.loads(words[words.index("-d") + 1])


@pytest.mark.parametrize(
    ("task", "has_chat_template", "path", "schema"),
    [
        ("generate", True, "/v1/chat/completions", ChatRequest),
        ("generate", False, "/v1/completions", CompletionRequest),
        ("embed", True, "/v1/embeddings", EmbeddingRequest),
        ("embed", False, "/v1/embeddings", EmbeddingRequest),
        ("score", True, "/v1/rerank", RerankRequest),
        ("score", False, "/v1/rerank", RerankRequest),
    ],
)
def test_each_kind_of_model_gets_a_request_that_it_can_answer(
    capsys: pytest.CaptureFixture[str], task: Task, has_chat_template: bool, path: str, schema: type[Strict]
) -> None:
    found, body = pasted(capsys, task, has_chat_template=has_chat_template)
    assert found == path
    assert body["model"] == MODEL
    schema.model_validate(body)  # which refuses fields that are not known
