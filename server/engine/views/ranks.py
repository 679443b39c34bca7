"""The reported state of the worker ranks."""

import logging
from collections.abc import Mapping, Sequence

from numaserve.server.engine.clock import Clock
from numaserve.server.engine.config import EngineConfig
from numaserve.server.engine.overview import WorkerState, workers_of
from numaserve.server.engine.views.info import loading_line, workers_info
from numaserve.server.engine.views.starvation import Starvation
from numaserve.server.metrics.metrics import Metrics
from numaserve.workers.interface.protocol import Launch, OperationTerms, Ready, WorkerStats

logger = logging.getLogger(__name__)


class Ranks:
    """Keeps the reports of each rank of `launches`, and sets its metrics. `hosts` as in `EngineConfig`."""

    def __init__(self, launches: Sequence[Launch], metrics: Metrics, clock: Clock, hosts: Sequence[str]) -> None:
        self._launches = launches
        self._hosts = hosts
        self._metrics = metrics
        self._ready: dict[int, Ready] = {}
        self._newest: dict[int, Ready | WorkerStats] = {}
        self._starvation = Starvation(clock)

    def describe(self, message: Ready | WorkerStats) -> None:
        """Store the report of a rank."""
        self._newest[message.rank] = message
        if isinstance(message, Ready):
            self._ready[message.rank] = message
            self._metrics.memory_bound(message.rank, message.memory_bound)
        self._metrics.worker(
            message.rank,
            up=True,
            rss_bytes=message.rss_bytes,
            misplaced_pages=message.misplaced_pages,
            state_bytes=message.state_bytes if isinstance(message, Ready) else None,
        )

    def up(self, config: EngineConfig) -> None:
        """Log and publish that all ranks have loaded."""
        ready = self._ready.values()
        logger.info("%s", loading_line(ready))
        isa = ",".join(sorted({each.isa for each in ready}))
        self._metrics.describe(version=config.version, model=config.model, isa=isa, tp=self._launches[0].world_size)

    def starved(self, seconds: Mapping[int, float], elapsed: float) -> None:
        """Note that late ranks waited for a processor for such `seconds` of the last `elapsed`."""
        self._starvation.note(seconds, elapsed)
        for rank, waited in seconds.items():
            self._metrics.starved(rank, waited)

    def down(self) -> None:
        """Note that all ranks have ended. Their reports about shards stay, since they hold for new workers too."""
        for launch in self._launches:
            self._metrics.worker(launch.number, up=False)

    @property
    def terms(self) -> list[list[OperationTerms]]:
        """The work of the operations of each rank that has loaded."""
        return [each.terms for each in self._ready.values()]

    @property
    def draft_terms(self) -> list[list[OperationTerms]]:
        """The work of the draft models' operations of each rank that has loaded."""
        return [each.draft_terms for each in self._ready.values()]

    @property
    def tower_terms(self) -> list[list[OperationTerms]]:
        """The work of the vision towers' operations of each rank that has loaded."""
        return [each.tower_terms for each in self._ready.values()]

    @property
    def tower_parts(self) -> list[list[float]]:
        """The share of each part of a run of the vision tower, of each rank that has loaded."""
        return [each.tower_parts for each in self._ready.values()]

    @property
    def adapter_problems(self) -> dict[int, str]:
        """The reasons why ranks could not load adapters before they were ready, by the adapters' places."""
        return {
            each.request_id: f"worker {each.rank}: {each.problem}"
            for ready in self._ready.values()
            for each in ready.adapters
            if each.problem
        }

    def info(self, pids: Sequence[int]) -> list[dict[str, object]]:
        """Return process, place and sizes of each running rank, for `/server_info`; `pids` are by rank."""
        return workers_info(self._launches, pids, self._ready, self._hosts)

    def states(self) -> list[WorkerState]:
        """Return place, sizes and memory of each rank that has loaded."""
        return workers_of(self._launches, self._ready, self._newest, self._starvation.ranks())
