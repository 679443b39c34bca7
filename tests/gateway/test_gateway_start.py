"""The start of a gateway: the answers to requests that come before its models are ready."""

import asyncio
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from numaserve.server.config.serve import load_config
from numaserve.server.connection.bounds import ConnectionLimits
from numaserve.server.connection.listen import bind_listener, internet_listener
from numaserve.server.gateway import service
from numaserve.server.gateway.models.models_file import ModelsFile
from numaserve.server.gateway.models.resident import FleetOptions
from numaserve.server.service.process.key_sources import KeySources
from open_gateway import FAKE_MODEL_PROCESS, resident

COMMAND = (sys.executable, str(FAKE_MODEL_PROCESS))
A_MOMENT = 0.2


@pytest.mark.parametrize(("kept_open", "status"), [(False, 503), (True, 200)])
async def test_requests_wait_for_the_models_only_at_a_socket_that_is_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_open: bool, status: int
) -> None:
    monkeypatch.setattr(service.StopSignals, "handle", lambda *_: None)
    monkeypatch.setattr(service.gc, "freeze", lambda: None)
    notes = tmp_path / "notes"
    model = resident("a", notes, 0, how="late")
    placed = SimpleNamespace(spec=model.spec, root="", own_name="m", context_length=64, images=None)
    plan: Any = SimpleNamespace(placed={"a": placed}, residents={"a": model}, capacity={0: 100})
    models = ModelsFile({"a": model.spec}, "a", max_loaded=None, load_wait_s=60.0)
    address = ("127.0.0.1", 0)
    listener = (
        internet_listener(socket.create_server(address), None, kept_open=True) if kept_open else bind_listener(*address)
    )
    config, keys, limits = load_config({"model": "models.yaml"}), KeySources(None), ConnectionLimits()
    gateway = service._Life(config, models, plan, keys, [listener], limits=limits)
    with tempfile.TemporaryDirectory(prefix="ns-") as folder, listener:
        running = asyncio.create_task(gateway.run(FleetOptions(Path(folder), 5.0, 60.0, command=COMMAND)))
        try:
            while not notes.exists():
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=listener.url, timeout=60) as client:
                asked = asyncio.create_task(client.get("/readyz"))
                await asyncio.wait([asked], timeout=A_MOMENT if kept_open else None)
                notes.with_suffix(".ready").touch()
                assert (await asked).status_code == status
        finally:
            gateway._signals.stop.set()
            await running
