"""Adapters whose files are not read, and ranks that load them."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from numaserve.server.adapters.adapters import Adapters
from numaserve.server.adapters.errors import AdapterError
from numaserve.server.adapters.registry import RegistryHooks
from numaserve.server.config.lora_modules import LoraModule
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import LoraAdapter


@dataclass(frozen=True)
class Described:
    """The description of an adapter."""

    digest: str
    rank: int = 8
    mean_rank: float = 8.0
    matrices: int = 4


def describe(path: Path) -> Described:
    """Take a name with `bad` for files that do not fit, and the folder's name without digits for its content."""
    if "bad" in path.name:
        raise OperatorError(f"{path.name}: 'q_proj' has rank 99; --max-lora-rank is 16")
    return Described(hashlib.sha256(path.name.rstrip("0123456789").encode()).hexdigest())


@dataclass
class FakeRanks:
    """Loads what it is asked for, unless the path names a problem. While `go` is not set, nothing is answered."""

    matrices: int = 7
    loads: list[LoraAdapter] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    loading: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.go.set()

    async def load(self, adapter: LoraAdapter) -> int:
        self.loads.append(adapter)
        self.loading += 1
        self.most_at_once = max(self.most_at_once, self.loading)
        try:
            await asyncio.sleep(0)
            await self.go.wait()
            if "broken" in adapter.path:
                raise AdapterError("failed", "worker 1: no memory")
        finally:
            self.loading -= 1
        return self.matrices


def make_adapters(
    places: int, ranks: FakeRanks, *, start: Sequence[str] = (), hooks: RegistryHooks | None = None
) -> Adapters:
    """Return adapters over `ranks`, with those of the names `start`."""
    adapters = Adapters(places, describe, reserved=["tiny/bytes"])
    adapters.name_at_start([LoraModule(name, Path(f"/loras/{name}")) for name in start])
    adapters.connect(ranks, hooks or RegistryHooks())
    return adapters
