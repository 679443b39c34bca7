"""A server says that it is ready once nothing is left to be made that would hold up its first streams."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from numaserve.server.service import service
from numaserve.server.service.service import Service


class Http:
    """An HTTP server that notes what it is told."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._listening = threading.Event()
        self._stopped = asyncio.Event()

    def prepare(self) -> None:
        self.order.append("prepared too late" if self._listening.wait(0.2) else "prepared")

    def listen(self) -> None:
        self.order.append("listening")
        self._listening.set()

    def stop(self) -> None:
        self._stopped.set()

    async def run_until_stopped(self) -> None:
        await self._stopped.wait()


class Engine:
    """An engine whose workers are up at once."""

    async def start(self) -> None: ...

    async def stop(self, *, at_once: bool) -> None: ...

    def takes_requests(self) -> bool:
        return False


def test_what_constraints_need_is_made_before_the_server_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Http] = []

    def make_http(*_: object, **_options: object) -> Http:
        made.append(Http())
        return made[0]

    def announce(*_: object, **_options: object) -> None:
        made[0].order.append("announced")
        running._signals.stop.set()

    monkeypatch.setattr(service, "make_engine", lambda *_args, **_options: Engine())
    monkeypatch.setattr(service, "make_http_server", make_http)
    monkeypatch.setattr(service, "announce", announce)
    monkeypatch.setattr(service.gc, "freeze", lambda: None)
    listener = SimpleNamespace(place="somewhere", certificate=None, kept_open=False)
    checked: Any = SimpleNamespace(
        images=None,
        name="some",
        key_sources=SimpleNamespace(keys=None),
        adapters=None,
        kv_disk=None,
        config=SimpleNamespace(served_task="generate", log_format="auto"),
        tokenizer=SimpleNamespace(chat_template=None),
    )
    listeners: Any = [listener]

    async def run() -> int:
        nonlocal running
        running = Service(checked, listeners, ["true"])
        monkeypatch.setattr(running._signals, "handle", lambda *_: None)
        return await running.run()

    running: Service
    assert asyncio.run(run()) == 0
    assert made[0].order == ["prepared", "listening", "announced"]
