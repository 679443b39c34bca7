"""LoRA adapters in the API: their names as models, their lists, and their loads and unloads."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.purpose import Embeds
from numaserve.server.http.auth.key_file import ApiKey
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.adapters import FakeRanks, make_adapters
from tests.support.api_fakes import EMBEDDING_SIZE, MODEL, FakeEngine, make_context

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def ranks() -> FakeRanks:
    return FakeRanks()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of adapters, with a file next to it that is none of them."""
    root = tmp_path / "loras"
    for name in ("gamma", "gamma2", "bad", "broken", "stolen"):
        (root / name).mkdir(parents=True)
        (root / name / "adapter_config.json").write_text("{}")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("k")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "inside").symlink_to(root / "gamma")
    (root / "stolen" / "adapter_model.safetensors").symlink_to(tmp_path / "secret" / "key")
    return root


@pytest.fixture
def served(engine: FakeEngine, ranks: FakeRanks, root: Path) -> ApiContext:
    adapters = make_adapters(3, ranks, start=["alpha", "beta"])
    return replace(make_context(engine), adapters=adapters, lora_root=root, is_local=True)


@pytest.fixture
def client(served: ApiContext) -> Iterator[TestClient]:
    with TestClient(app_over(served), raise_server_exceptions=False) as client:
        yield client


def load(client: TestClient, name: str = "gamma", path: str = "gamma", **more: Any) -> Response:
    return client.post(LOAD, json={"lora_name": name, "lora_path": path, **more})


def listed(client: TestClient) -> list[str]:
    return [each["id"] for each in client.get("/v1/models").json()["data"]]


def message_of(answer: Response) -> str:
    return str(answer.json()["error"]["message"])


def test_embeddings_are_those_of_the_adapter(ranks: FakeRanks, engine: FakeEngine) -> None:
    context = make_context(engine, purpose=Embeds(EMBEDDING_SIZE))
    context = replace(context, adapters=make_adapters(1, ranks, start=["alpha"]))
    with TestClient(app_over(context)) as client:
        answer = client.post("/v1/embeddings", json={"model": "alpha", "input": ["x", "y"]})
        assert answer.json()["model"] == "alpha"
        assert {each.adapter and each.adapter.name for each in engine.admitted} == {"alpha"}


def test_a_load_in_place_is_another_adapter_of_the_same_name(client: TestClient, engine: FakeEngine) -> None:
    load(client)
    assert load(client, path="gamma2").status_code == 400
    for path in ("gamma", "gamma2"):
        client.post("/v1/completions", json={"model": "gamma", "prompt": "x"})
        assert load(client, path=path, load_inplace=True).status_code == 200
    client.post("/v1/completions", json={"model": "gamma", "prompt": "x"})
    assert listed(client).count("gamma") == 1
    assert len({each.scope for each in engine.admitted}) == 3
    assert len({each.adapter and each.adapter.load_id for each in engine.admitted}) == 3


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"lora_name": "alpha", "lora_path": "gamma"}, 400, "'alpha' has already been loaded"),
        ({"lora_name": MODEL, "lora_path": "gamma"}, 400, "is a name of the served model"),
        ({"lora_name": "a:b", "lora_path": "gamma"}, 400, "adapter name 'a:b' is invalid"),
        ({"lora_name": "x", "lora_path": ""}, 400, "lora_path"),
        ({"lora_path": "gamma"}, 400, "lora_name"),
        ({"lora_name": "x", "lora_path": "none"}, 404, "No LoRA adapter is at 'none'"),
        ({"lora_name": "x", "lora_path": "bad"}, 400, "'q_proj' has rank 99"),
        ({"lora_name": "x", "lora_path": "broken"}, 500, "worker 1: no memory"),
        ({"lora_name": "x", "lora_path": "gamma", "model": "other"}, 404, "'other' does not exist"),
        ({"lora_name": "x", "lora_path": "../secret"}, 403, "does not lie in the folder"),
        ({"lora_name": "x", "lora_path": "gamma/../../secret"}, 403, "does not lie in the folder"),
        ({"lora_name": "x", "lora_path": "../none"}, 403, "does not lie in the folder"),
        ({"lora_name": "x", "lora_path": "out"}, 403, "does not lie in the folder"),
        ({"lora_name": "x", "lora_path": "/etc"}, 403, "does not lie in the folder"),
        ({"lora_name": "x", "lora_path": "."}, 403, "does not lie in the folder"),
        ({"lora_name": "x", "lora_path": "gamma\0"}, 403, "does not lie in the folder"),
        ({"lora_name": "x", "lora_path": "stolen"}, 403, "is a link out of the folder"),
    ],
)
def test_a_load_that_fails_leaves_the_server_as_it_was(
    client: TestClient, body: dict[str, str], status: int, said: str
) -> None:
    answer = client.post(LOAD, json=body)
    assert answer.status_code == status, answer.text
    assert said in message_of(answer)
    assert listed(client) == [MODEL, "alpha", "beta"]
    assert load(client, path="inside").status_code == 200  # the place is free, and a link within the root is followed


def test_a_load_without_a_free_place_names_the_remedy(client: TestClient) -> None:
    load(client)
    full = load(client, "delta")
    assert full.status_code == 409
    assert "'alpha', 'beta', 'gamma'" in message_of(full)
    assert "larger --max-loras" in message_of(full)
    assert load(client, "gamma", "gamma2", load_inplace=True).status_code == 200  # it takes its own place
    client.post(UNLOAD, json={"lora_name": "alpha"})
    assert load(client, "delta").status_code == 200


ROUTES = [LOAD, UNLOAD, "/load_lora_adapter", "/unload_lora_adapter"]


@pytest.mark.parametrize("path", ROUTES)
def test_only_a_key_with_admin_rights_loads_and_unloads(
    engine: FakeEngine, ranks: FakeRanks, root: Path, path: str
) -> None:
    keys = [ApiKey("user"), ApiKey("boss", admin=True)]
    adapters = make_adapters(2, ranks, start=["alpha"])
    context = replace(make_context(engine, keys=keys), adapters=adapters, lora_root=root, is_local=True)
    body = {"lora_name": "x" if "/load" in path else "alpha", "lora_path": "gamma"}
    with TestClient(app_over(context)) as client:
        refused = client.post(path, json=body, headers={"x-api-key": "user"})
        assert refused.status_code == 403
        assert "needs an API key with admin=yes" in message_of(refused)
        assert client.post(path, json=body, headers={"x-api-key": "boss"}).status_code == 200


@pytest.mark.parametrize("path", ROUTES)
def test_without_keys_only_a_local_server_loads_and_unloads(served: ApiContext, path: str) -> None:
    with TestClient(app_over(replace(served, is_local=False))) as client:
        refused = client.post(path, json={"lora_name": "x", "lora_path": "gamma"})
        assert refused.status_code == 403
        assert "other machines can reach the server" in message_of(refused)


def test_without_a_root_nothing_is_loaded_and_the_answer_says_what_to_set(served: ApiContext) -> None:
    with TestClient(app_over(replace(served, lora_root=None))) as client:
        refused = load(client)
        assert (refused.status_code, "--lora-root" in message_of(refused)) == (403, True)


def test_a_server_without_memory_for_adapters_says_what_to_set(
    engine: FakeEngine, ranks: FakeRanks, root: Path
) -> None:
    context = replace(make_context(engine), adapters=make_adapters(0, ranks), lora_root=root, is_local=True)
    with TestClient(app_over(context)) as client:
        refused = load(client)
        assert (refused.status_code, "--max-loras N" in message_of(refused)) == (409, True)
