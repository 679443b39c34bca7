"""Random bodies made of the fields that exist: the server answers 200 or blames the client, and serves on."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numaserve.server.surfaces.anthropic.schema import CountTokensRequest, MessagesRequest
from numaserve.server.surfaces.ollama.chat_schema import OllamaChatRequest
from numaserve.server.surfaces.ollama.generate_schema import OllamaGenerateRequest
from numaserve.server.surfaces.ollama.show_schema import OllamaShowRequest
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.surfaces.openai.completion_schema import CompletionRequest
from numaserve.server.surfaces.openai.responses.schema import ResponsesRequest
from numaserve.server.surfaces.sglang.abort_schema import AbortRequest
from numaserve.server.surfaces.sglang.generate_schema import SGLangGenerateRequest
from numaserve.server.surfaces.vllm.tokenize_schema import DetokenizeRequest, TokenizeRequest
from pydantic import BaseModel
from whole_answers import TestClient

from tests.support.api_fakes import MODEL, REPLY
from tests.support.error_forms import error_message

NUMBERS = st.one_of(
    st.integers(-2, 5), st.integers(), st.floats(-2, 2), st.floats(), st.sampled_from([2**31, 2**63, -(2**63), 10**400])
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["none", "auto", "\ud800"]))
NAMES = st.sampled_from(
    ["name", "input_schema", "role", "content", "type", "text", "include_usage", "1", "259", "user"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
SCHEMAS: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "x"}),
    "/v1/responses": (ResponsesRequest, {"input": "x"}),
    "/v1/messages": (MessagesRequest, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}),
    "/v1/messages/count_tokens": (CountTokensRequest, {"messages": [{"role": "user", "content": "x"}]}),
    "/tokenize": (TokenizeRequest, {"prompt": "x"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
    "/api/chat": (OllamaChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    "/api/generate": (OllamaGenerateRequest, {"prompt": "x"}),
    "/api/show": (OllamaShowRequest, {}),
    "/generate": (SGLangGenerateRequest, {"text": "x"}),
    "/abort_request": (AbortRequest, {"rid": "x"}),
}


@pytest.mark.parametrize("examples", [60, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", SCHEMAS)
def test_a_random_body_never_fails_the_server(shared_client: TestClient, path: str, examples: int) -> None:
    schema, valid = SCHEMAS[path]
    fields = st.dictionaries(st.sampled_from(sorted(schema.model_fields)), VALUES, min_size=1, max_size=3)

    @settings(max_examples=examples, derandomize=True)
    @given(fields)
    def blames_the_client_or_answers(fields: dict[str, Any]) -> None:
        content = json.dumps({"model": MODEL, **valid, **fields})
        answer = shared_client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400, 404)
        if answer.status_code != 200:
            assert error_message(answer)
            after = shared_client.post("/v1/completions", json={"prompt": "x"})
            assert after.json()["choices"][0]["text"] == REPLY

    blames_the_client_or_answers()
