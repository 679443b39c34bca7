"""A running gateway and its models, as tests use them."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from numaserve.server.config.serve import load_config
from numaserve.server.gateway.models.fleet import Fleet
from numaserve.server.gateway.models.models_file import ModelSpec, Place
from numaserve.server.gateway.models.residency import Claim
from numaserve.server.gateway.models.resident import Resident

FAKE_MODEL_PROCESS = Path(__file__).with_name("fake_model_process.py")


@dataclass
class Opened:
    """A gateway that is open."""

    fleet: Fleet
    client: httpx.AsyncClient
    address: tuple[str, int]
    notes: Path

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)


def started(door: Opened, name: str) -> list[int]:
    """Process ids of the model's servers so far."""
    return [int(line.split()[2]) for line in door.noted() if line.startswith(f"{name} starts")]


def kill(door: Opened, name: str) -> None:
    """Kill the first server of a model."""
    os.kill(started(door, name)[0], signal.SIGKILL)


Open = Callable[..., AbstractAsyncContextManager[Opened]]


def resident(
    name: str, notes: Path, index: int, *, how: str = "ready", core: int | None = None, **place: Any
) -> Resident:
    options = {"model": how, "chat_template": str(notes)}
    spec = ModelSpec(name, load_config(options), options, Place(**place))
    claim = Claim(frozenset({index if core is None else core}), {0: 1}, spec.place.pinned, spec.place.idle_unload_s)
    return Resident(spec, sorted(os.sched_getaffinity(0)), claim)
