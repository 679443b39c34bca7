"""What real clients and routers send, as `python -m tests.clients --record` saw it, gets the answers it got then."""

import json
import re
import runpy
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from image_cases import seeing_context
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.app.application import ApiLimits, create_app
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.purpose import Classifies, Embeds
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.byte_tokenizer import ByteTokenizer

MODEL, VOCAB = "SmolLM2-135M-Instruct", 49152  # that was asked then
AGENT = "agent"  # and that of agents, whose prompts are long
DIMENSIONS = 72  # of the encoder
PROMPTS = EmbeddingSettings(prompts={"query": "query: ", "document": "passage: "})
CONTEXT = 131_072
ROOT = Path(__file__).resolve().parents[2]
CLIENTS = runpy.run_path(str(ROOT / "tests" / "clients" / "known_clients.py"))["CLIENTS"]
MODEL_OF = {client.name: client.model for client in CLIENTS}
RECORDED = sorted((ROOT / "tests" / "clients" / "recorded").glob("*.json"))
REQUESTS: dict[str, list[dict[str, Any]]] = {file.stem: json.loads(file.read_text()) for file in RECORDED}  # by client
MISTAKES = {
    "The model 'other' does not exist.",
    "Invalid value for 'temperature': Input should be less than or equal to 2.",
    "Invalid value for 'options.temperature': Input should be less than or equal to 2.",
    "Invalid value for 'top_p': Input should be less than or equal to 1.",
    "Invalid value for 'background': this field is not supported; omit it or use null, false.",
    "'dimensions' is 73, but this model's embeddings have 72 dimensions.",
    "'prompt_name' is 'passage', but this model's prompts are 'query', 'document'. Send one of these names, or leave "
    "'prompt_name' out.",
    "Invalid value for 'embedding_types[0]': int8 needs the range of each dimension, which this model's files do not "
    "have; use 'float'.",
    "Invalid value for 'images': this model does not accept images, only text; leave this out or describe the content "
    "in text.",
    "'response_format' cannot be served: the constraint's $ref cannot be enforced: a reference must point into the "
    "schema itself, and circular references must not add keywords.",
}
# What clients ask of servers of several kinds, and do without.
ROUTES_OF_OTHERS = {
    "Unknown request URL: GET /loads.",
    "Unknown request URL: GET /tokenizer_info.",
    "Unknown request URL: POST /v1/chat/completions/render.",
    "Unknown request URL: POST /v1/completions/render.",
}
HERMES = tool_formats()["hermes"]  # in which tools are written for the demo model
# What the last line of a stream has, by surface.
ENDS = ("data: [DONE]", '"done":true', '"status":"success"', '"type":"message_stop"', '"type":"response.')
RESPONSE_ID, ITEM_ID = re.compile("resp_[0-9a-f]{48}"), re.compile("(msg|fc|rs)_[0-9a-f]{48}_[0-9]+")
LOCAL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def applications() -> Iterator[dict[str, TestClient]]:
    """Clients of the applications that serve each model."""
    encoder = make_context(FakeEngine(dimensions=DIMENSIONS), purpose=Embeds(DIMENSIONS, settings=PROMPTS))
    reranker = make_context(FakeEngine(dimensions=1), purpose=Classifies(("LABEL_0",), "sigmoid"))
    demo, seeing = _app(ByteTokenizer(vocab_size=VOCAB)), seeing_context(FakeEngine())
    made = {
        "": demo,
        "agent": demo,
        "encoder": create_app(replace(encoder, model_name="encoder")),
        "reranker": create_app(replace(reranker, model_name="reranker")),
        "demo-images": create_app(replace(seeing, model_name="demo-images")),
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(TestClient(app, base_url=LOCAL, raise_server_exceptions=False))
            for name, app in made.items()
        }


def _app(tokenizer: ByteTokenizer) -> Any:
    context = make_context(FakeEngine(), tokenizer_info=False)
    return create_app(
        replace(
            context,
            tokenizer=tokenizer,
            model_name=MODEL,
            other_names=(AGENT,),
            limits=ApiLimits(CONTEXT, VOCAB),
            tool_format=HERMES,
        )
    )


def _replay(client: TestClient, recorded: dict[str, Any]) -> Response:
    request = _about_what_is_stored(client, recorded)
    content = json.dumps(request["body"]) if "body" in request else None
    return client.request(request["method"], request["path"], headers=request["headers"], content=content)


def _about_what_is_stored(client: TestClient, request: dict[str, Any]) -> dict[str, Any]:
    """The request with the ids of a response that is stored, and of its item, in place of those that were."""
    text = json.dumps(request)
    if not RESPONSE_ID.search(text) and not ITEM_ID.search(text):
        return request
    response = client.post("/v1/responses", json={"input": "hi"}).json()
    text = RESPONSE_ID.sub(response["id"], text)
    renewed: dict[str, Any] = json.loads(ITEM_ID.sub(response["output"][0]["id"], text))
    return renewed


def test_every_client_was_recorded_and_is_documented() -> None:
    assert sorted(file.stem for file in RECORDED) == sorted(client.name for client in CLIENTS)
    text = (ROOT / "docs" / "clients.md").read_text()
    for client in CLIENTS:
        assert f"| {client.version}" in text, client.name


@pytest.mark.parametrize("name", REQUESTS)
def test_recorded_requests_are_answered_as_they_were(applications: dict[str, TestClient], name: str) -> None:
    client = applications[MODEL_OF[name]]
    answers = [(request, _replay(client, request)) for request in REQUESTS[name]]
    assert [
        (number, request["method"], request["path"], answer.status_code, answer.text)
        for number, (request, answer) in enumerate(answers)
        if not _is_as_recorded(request, answer)
    ] == []


def _is_as_recorded(request: dict[str, Any], answer: Response) -> bool:
    if answer.status_code != request["status"]:
        return False
    if answer.status_code != 200 or not request.get("body", {}).get("stream"):
        return True
    return any(mark in answer.text.rstrip().splitlines()[-1] for mark in ENDS) and '"error":{' not in answer.text


def test_no_other_recorded_request_was_refused() -> None:
    refusals = {each.get("refusal") for requests in REQUESTS.values() for each in requests if each["status"] != 200}
    assert refusals == MISTAKES | ROUTES_OF_OTHERS
