"""LoRA adapters of several models: their names, their lists, and the orders to load and unload one."""

import json
from typing import Any

import httpx
import pytest
from numaserve.server.http.auth.key_file import ApiKey
from open_gateway import Open, Opened

TWO: dict[str, dict[str, Any]] = {"a": {"how": "adapted"}, "b": {"load": "request"}}
LORAS = {"a": {"a-later": "/x", "gone": "/gone"}, "b": {"b-sql": "/sql"}}
ROUTES = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"]


async def until_ready(door: Opened) -> None:
    await door.until(lambda: "a" in door.fleet.open_sessions())


async def by(door: Opened, path: str, **body: str) -> str:
    """The model whose process answers."""
    return str((await door.client.post(path, json=body)).json()["by"])


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


async def test_a_name_of_an_adapter_leads_to_its_model_loaded_or_not(opened: Open) -> None:
    async with opened(TWO, loras={"a": {}, "b": LORAS["b"]}) as door:
        await until_ready(door)
        for name in ("a-later", "a-later:latest"):
            assert await by(door, "/echo", model=name) == "a"
        assert (await door.client.post("/echo", json={"model": "omega"})).status_code == 404
        assert door.fleet.state("b") == "unloaded"
        assert await by(door, "/echo", model="b-sql") == "b"


async def test_lists_have_what_is_loaded_and_of_other_models_what_the_file_names(opened: Open) -> None:
    async with opened(TWO, loras=LORAS) as door:
        await until_ready(door)
        models = (await door.client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["parent"], each["root"]) for each in models] == [
            ("a", None, "m"),
            ("b", None, "m"),
            ("a-later", "a", "/later"),
            ("b-sql", "b", "/sql"),
        ]
        assert (await door.client.get("/v1/models/b-sql")).json() == models[3]
        assert (await door.client.get("/v1/models/gone")).status_code == 404


async def test_models_without_memory_for_adapters_are_not_asked(opened: Open) -> None:
    async with opened({"a": {"how": "adapted"}}) as door:
        await until_ready(door)
        assert (await door.client.post("/echo", json={"model": "a-later"})).status_code == 404


@pytest.mark.parametrize("path", ROUTES)
async def test_an_order_goes_to_the_model_that_it_names_or_that_has_the_adapter(opened: Open, path: str) -> None:
    async with opened(TWO, loras=LORAS) as door:
        await until_ready(door)
        assert await by(door, path, lora_name="new", model="b") == "b"
        assert await by(door, path, lora_name="new") == "a"
        assert await by(door, path, lora_name="b-sql") == "b"
        for name, owner in (("a-later", "a"), ("a", "a")):
            answer = await door.client.post(path, json={"lora_name": name, "model": "b"})
            assert refusal(answer) == (
                400,
                f"The name '{name}' belongs to the model '{owner}'. Choose another 'lora_name'.",
            )
        assert (await door.client.post(path, json={"lora_name": "new", "model": "omega"})).status_code == 404


@pytest.mark.parametrize("path", ROUTES)
async def test_an_order_about_an_adapter_takes_an_admin_key_and_says_so_to_the_model(opened: Open, path: str) -> None:
    keys = [ApiKey("user"), ApiKey("root", admin=True)]
    async with opened(TWO, loras=LORAS, keys=keys) as door:
        await until_ready(door)
        body = {"lora_name": "new"}
        assert (await door.client.post(path, json=body)).status_code == 401
        refused = await door.client.post(path, json=body, headers={"x-api-key": "user"})
        assert refusal(refused) == (403, "Loading and unloading LoRA adapters needs an API key with admin=yes.")
        answer = await door.client.post(path, json=body, headers={"x-api-key": "root"})
        passed = dict(answer.json()["headers"])["x-numaserve-client"]
        assert json.loads(passed)["admin"] is True
    async with opened(TWO, loras=LORAS, is_local=False) as door:
        await until_ready(door)
        assert (await door.client.post(path, json=body)).status_code == 403
