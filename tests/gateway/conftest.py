"""A gateway over servers that are stand-ins, in this process's event loop."""

import asyncio
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from numaserve.server.connection.app_server import AppServer
from numaserve.server.gateway.adapters import Adapters
from numaserve.server.gateway.app import with_layers
from numaserve.server.gateway.gateway import Gateway
from numaserve.server.gateway.models.fleet import Fleet
from numaserve.server.gateway.models.metrics import FleetMetrics
from numaserve.server.gateway.models.resident import FleetOptions
from numaserve.server.gateway.own_routes import OwnRoutes, Shown
from numaserve.server.http.auth.key_file import ApiKey
from numaserve.server.http.auth.keys import ApiKeys
from numaserve.server.http.browser_rules import BrowserRules
from open_gateway import FAKE_MODEL_PROCESS, Open, Opened, resident

from tests.support.coroutines import run_coroutine
from tests.support.forked import members_and_workers_forked, prepare


@pytest.fixture(autouse=True, scope="session")
def _cheap_processes() -> Iterator[None]:
    prepare([FAKE_MODEL_PROCESS.stem], FAKE_MODEL_PROCESS.parent)
    with members_and_workers_forked():
        yield


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Opens a gateway before these models: of each how its server behaves, and its keys in the file."""

    @asynccontextmanager
    async def opened(
        models: Mapping[str, Mapping[str, Any]],
        *,
        keys: list[ApiKey] | None = None,
        max_loaded: int | None = None,
        load_wait_s: float = 60.0,
        drain_seconds: float = 5.0,
        is_local: bool = True,
        ui: bool = True,
        loras: Mapping[str, Mapping[str, str]] | None = None,
    ) -> AsyncIterator[Opened]:
        notes = tmp_path / "notes"
        residents = {name: resident(name, notes, index, **each) for index, (name, each) in enumerate(models.items())}
        metrics = FleetMetrics(residents)
        with tempfile.TemporaryDirectory(prefix="ns-") as folder, socket.create_server(("127.0.0.1", 0)) as listener:
            options = FleetOptions(
                Path(folder), drain_seconds, load_wait_s, command=(sys.executable, str(FAKE_MODEL_PROCESS))
            )
            fleet = Fleet(residents, {0: 100}, max_loaded, options, metrics)
            routes = OwnRoutes(
                fleet,
                names={name: name for name in residents},
                shown={name: Shown("m", 64, None) for name in residents},
                keys=None if keys is None else ApiKeys(keys),
                is_local=is_local,
                metrics=metrics,
                version="0",
                adapters=Adapters(fleet, loras or {}),
                ui=ui,
            )
            gateway = Gateway(routes, next(iter(residents)))
            server = AppServer(with_layers(gateway, BrowserRules()), [listener])
            serving = asyncio.create_task(server.run_until_stopped())
            fleet.start()
            host, port = listener.getsockname()
            try:
                async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as client:
                    yield Opened(fleet, client, (host, port), notes)
            finally:
                await fleet.stop()
                gateway.close()
                server.stop()
                await serving

    return opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In the event loop that the server uses."""
    return run_coroutine(pyfuncitem, uvloop.new_event_loop)
