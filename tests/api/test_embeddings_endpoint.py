"""Embeddings as OpenAI's client decodes them."""

import openai
import pytest
from numaserve.server.generation.purpose import Embeds
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, MODEL, FakeEngine, make_context


def client_of(engine: FakeEngine) -> openai.OpenAI:
    http = TestClient(app_over(make_context(engine, purpose=Embeds(engine.dimensions))))
    return openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", http_client=http)


def test_openai_s_client_decodes_the_base64_that_it_asks_for() -> None:
    found = client_of(FakeEngine(dimensions=EMBEDDING_SIZE)).embeddings.create(model=MODEL, input=["a"], dimensions=2)
    assert [item.embedding for item in found.data] == [pytest.approx([0.6, 0.8])]


def test_openai_s_client_leaves_bits_as_they_are() -> None:
    bits = {"embedding_type": "ubinary"}
    found = client_of(FakeEngine(dimensions=16)).embeddings.create(model=MODEL, input="a", extra_body=bits)
    assert found.data[0].embedding == [255, 255]
