"""GET /v1/models in Anthropic's shape."""

from numaserve.server.app.application import ApiContext
from starlette.testclient import TestClient

from tests.support.api_fakes import MODEL

HEADERS = {"anthropic-version": "2023-06-01"}


def test_anthropic_s_clients_get_its_shape(client: TestClient, context: ApiContext) -> None:
    listed = client.get("/v1/models", headers=HEADERS).json()
    (model,) = listed["data"]
    assert listed == {"data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL}
    assert model.pop("created_at").endswith("Z")
    assert model == {"type": "model", "id": MODEL, "display_name": MODEL}
    assert client.get(f"/v1/models/{MODEL}", headers=HEADERS).json()["type"] == "model"
    assert client.get("/v1/models/other", headers=HEADERS).status_code == 404


def test_others_get_openai_s(client: TestClient) -> None:
    assert client.get("/v1/models").json()["data"][0]["object"] == "model"
