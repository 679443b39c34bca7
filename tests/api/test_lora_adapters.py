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
from starlette.testclient import TestClient

from tests.support.adapters import FakeRanks, make_adapters
from tests.support.api_fakes import EMBEDDING_SIZE, MODEL, FakeEngine, make_context

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_TURN = [{"role": "user", "content": "x"}]
# A request of each surface that generates, without its model.
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _TURN},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": _TURN, "max_tokens": 9},
    "/api/chat": {"messages": _TURN, "stream": False},
    "/api/generate": {"prompt": "x", "stream": False},
    "/generate": {"text": "x"},
}
COUNTING: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [97]},
    "/v1/messages/count_tokens": {"messages": _TURN},
    "/v1/responses/input_tokens": {"input": "x"},
}


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


@pytest.mark.parametrize("name", ["alpha", "alpha:latest"])
@pytest.mark.parametrize("path", GENERATING)
def test_a_model_s_name_chooses_the_adapter_on_every_surface(
    client: TestClient, engine: FakeEngine, path: str, name: str
) -> None:
    answer = client.post(path, json={**GENERATING[path], "model": name})
    assert answer.status_code == 200, answer.text
    adapter = engine.admitted[0].adapter
    assert adapter is not None
    assert (adapter.name, adapter.number) == ("alpha", 1)
    assert engine.admitted[0].scope.adapter is adapter
    assert answer.json().get("model", "alpha").removesuffix(":latest") == "alpha"


@pytest.mark.parametrize("path", GENERATING)
def test_the_model_itself_has_no_adapter_and_another_name_is_not_found(
    client: TestClient, engine: FakeEngine, path: str
) -> None:
    assert client.post(path, json={**GENERATING[path], "model": MODEL}).status_code == 200
    assert [each.adapter for each in engine.admitted] == [None]
    answer = client.post(path, json={**GENERATING[path], "model": "omega"})
    assert answer.status_code == 404
    assert "'alpha'" in answer.text


@pytest.mark.parametrize("path", COUNTING)
def test_tokens_are_counted_for_an_adapter_as_for_the_model(client: TestClient, path: str) -> None:
    answers = [client.post(path, json={**COUNTING[path], "model": name}) for name in (MODEL, "beta")]
    assert answers[0].status_code == 200
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions"])
def test_sglang_s_lora_path_names_an_adapter(client: TestClient, engine: FakeEngine, path: str) -> None:
    answer = client.post(path, json={**GENERATING[path], "model": MODEL, "lora_path": "beta"})
    assert answer.json().get("model", "beta") == "beta"
    client.post(path, json={**GENERATING[path], "model": "alpha", "lora_path": "beta"})
    assert [each.adapter and each.adapter.name for each in engine.admitted] == ["beta", "alpha"]
    missing = client.post(path, json={**GENERATING[path], "lora_path": "omega"})
    assert missing.status_code == 404
    assert "'omega' is not loaded" in message_of(missing)
    several = client.post(path, json={**GENERATING[path], "lora_path": ["alpha", "beta"]})
    assert (several.status_code, several.json()["error"]["param"]) == (400, "lora_path")
    assert "one LoRA adapter for all of its prompts. Give one name, or" in message_of(several)


def test_embeddings_are_those_of_the_adapter(ranks: FakeRanks, engine: FakeEngine) -> None:
    context = make_context(engine, purpose=Embeds(EMBEDDING_SIZE))
    context = replace(context, adapters=make_adapters(1, ranks, start=["alpha"]))
    with TestClient(app_over(context)) as client:
        answer = client.post("/v1/embeddings", json={"model": "alpha", "input": ["x", "y"]})
        assert answer.json()["model"] == "alpha"
        assert {each.adapter and each.adapter.name for each in engine.admitted} == {"alpha"}


def test_lists_show_adapters_with_the_model_as_parent(client: TestClient) -> None:
    base, alpha, _ = client.get("/v1/models").json()["data"]
    assert (base["id"], base["parent"]) == (MODEL, None)
    assert (alpha["id"], alpha["parent"], alpha["root"]) == ("alpha", MODEL, "/loras/alpha")
    assert client.get("/v1/models/alpha").json() == alpha
    tags = client.get("/api/tags").json()["models"]
    assert [each["name"] for each in tags] == [f"{MODEL}:latest", "alpha:latest", "beta:latest"]
    assert [each["details"]["parent_model"] for each in tags] == ["", MODEL, MODEL]
    assert client.post("/api/show", json={"model": "alpha"}).json()["details"]["parent_model"] == MODEL
    assert client.get("/server_info").json()["served_model_names"] == [MODEL, "alpha", "beta"]


def test_an_adapter_is_loaded_served_and_unloaded_as_by_vllm(
    client: TestClient, engine: FakeEngine, ranks: FakeRanks, root: Path
) -> None:
    answer = load(client)
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'gamma' added successfully.")
    assert answer.headers["x-numaserve-matrices"] == "7"
    assert [(each.number, each.path) for each in ranks.loads] == [(3, str(root / "gamma"))]
    assert client.post("/v1/completions", json={"model": "gamma", "prompt": "x"}).status_code == 200
    answer = client.post(UNLOAD, json={"lora_name": "gamma", "lora_int_id": 3})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'gamma' removed successfully.")
    assert client.post("/v1/completions", json={"model": "gamma", "prompt": "x"}).status_code == 404
    assert listed(client) == [MODEL, "alpha", "beta"]


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


def test_an_unknown_adapter_cannot_be_unloaded(client: TestClient) -> None:
    answer = client.post(UNLOAD, json={"lora_name": "omega"})
    assert (answer.status_code, message_of(answer)) == (404, "The lora adapter 'omega' cannot be found.")


def test_sglang_s_answers_list_the_loaded_adapters(client: TestClient, root: Path) -> None:
    both = {"alpha": "/loras/alpha", "beta": "/loras/beta"}
    answer = client.post("/load_lora_adapter", json={"lora_name": "gamma", "lora_path": "gamma", "pinned": True})
    assert answer.json() == {
        "success": True,
        "error_message": "",
        "loaded_adapters": {**both, "gamma": str(root / "gamma")},
        "matrices": 7,
    }
    refused = client.post("/load_lora_adapter", json={"lora_name": "gamma", "lora_path": "gamma"})
    assert refused.status_code == 400
    assert (refused.json()["success"], refused.json()["error_message"][:24]) == (False, "The lora adapter 'gamma'")
    answer = client.post("/unload_lora_adapter", json={"lora_name": "gamma"})
    assert answer.json() == {"success": True, "error_message": "", "loaded_adapters": both}
    assert client.post("/unload_lora_adapter", json={"lora_name": "gamma"}).status_code == 404


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
