"""The OpenAPI document of a gateway, made of those of its models' servers."""

import functools

import pytest
import schemathesis
from fastapi.testclient import TestClient
from numaserve.server.app.application import create_app
from numaserve.server.gateway.description import described

from tests.support.api_fakes import FakeEngine, make_context


@functools.cache  # making one takes half a second
def document(*, tokenizer_info: bool) -> bytes:
    client = TestClient(create_app(make_context(FakeEngine(), keys=["key"], tokenizer_info=tokenizer_info)))
    return client.get("/openapi.json", headers={"X-Api-Key": "key"}).content


@pytest.mark.parametrize("has_keys", [False, True])
def test_the_document_of_a_gateway_has_the_routes_of_all_models_and_its_own(*, has_keys: bool) -> None:
    servers = [document(tokenizer_info=False), document(tokenizer_info=True)]
    whole = described(servers, {"/v1/models"}, has_keys=has_keys, root_path="/llm")
    assert all(each.ok() for each in schemathesis.openapi.from_dict(whole).get_all_operations())
    paths = whole["paths"]
    assert {"/v1/completions", "/tokenizer_info", "/models/load", "/models/unload"} <= paths.keys()
    for path in ("/v1/completions", "/models/load"):
        assert ("security" in paths[path]["post"]) == has_keys
    assert whole["servers"] == [{"url": "/llm"}]
    assert "state" in whole["components"]["schemas"]["Model"]["required"]

    def names(path: str) -> list[str]:
        return [each["name"] for each in paths[path]["get"].get("parameters", ())]

    assert ("model" in names("/server_info"), "model" in names("/v1/models")) == (True, False)
