"""A scheduler with a disk tier, whose ranks and index are in the test."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numaserve.server.engine.disk_work import DiskWork
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.disk.changes import Change, RecordKind
from numaserve.server.scheduler.disk.directory import DiskDirectory
from numaserve.server.scheduler.disk.shelves import Directories, RecordSizes
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.workers.interface.protocol import (
    DiskReady,
    DiskRecord,
    ReadRecords,
    RecordsMoved,
    SamplingParams,
    SeqResult,
    StepResult,
    ToDisk,
    WriteRecords,
)

from tests.support.plan_limits import plan_limits
from tests.support.sequences import sequence

PAGE, RECORD, MOST = 4, 4096, 100
PROMPT = list(range(5 * PAGE + 1))
TEAM = Client("key", cache_group="team")


class Index:
    """An index that keeps changes and erasures in their order."""

    folder = Path("/kv")
    limit_bytes = 1 << 20

    def __init__(self, pages: DiskDirectory, max_age_s: int | None = None) -> None:
        self.max_age_s = max_age_s
        self.time = 7
        self.pages = pages
        self.kept: list[Change | dict[RecordKind, list[int]]] = []
        self.erased: list[Callable[[], None]] = []

    async def load(self, sizes: RecordSizes) -> Directories:
        return Directories(self.pages, DiskDirectory(0))

    def append(self, changes: Sequence[Change]) -> None:
        self.kept += changes

    def erase(self, slots: Mapping[RecordKind, Sequence[int]], done: Callable[[], None]) -> None:
        self.kept.append({kind: list(each) for kind, each in slots.items()})
        self.erased.append(done)

    def now(self) -> int:
        return self.time


class Ranks:
    """A server of two ranks, whose steps take a second for each token."""

    def __init__(
        self, pages: DiskDirectory | None = None, log: KVEventLog | None = None, max_age_s: int | None = None
    ) -> None:
        self.scheduler = Scheduler(plan_limits(40, 64, page_size=PAGE, kv_disk=True), log)
        assert self.scheduler.disk is not None
        self.tier = self.scheduler.disk
        self.tier._compute_seconds = lambda first, number: float(number)
        self.index = Index(DiskDirectory(MOST) if pages is None else pages, max_age_s)
        self.sent: list[ToDisk] = []
        self.work = DiskWork(
            self.tier, self.index, send=self.sent.append, wake=lambda: None, world_size=2, clock=lambda: 0.0
        )

    async def open(self, bytes_per_s: float = 1e9) -> None:
        for rank in range(2):
            self.work.on_answer(DiskReady(rank, RECORD, 0, bytes_per_s))
        while not self.tier.is_open:
            await asyncio.sleep(0)

    def serve(self, name: str, client: Client = TEAM, prompt: list[int] = PROMPT, **fields: Any) -> None:
        """Serve a prompt, and move what the tier wants to be moved meanwhile."""
        self.scheduler.add(sequence(name, prompt, SamplingParams(), 1, client=client, **fields))
        plan = self.scheduler.schedule()
        while plan is None or not plan.seqs:
            self.move()
            plan = self.scheduler.schedule()
        self.scheduler.apply(StepResult(plan.step_id, 0, [SeqResult(7)], 0, 0, 0))
        self.work.pump()

    def move(self, lacking: int = 0) -> list[DiskRecord]:
        """Answer all requests for both ranks, of which one lacks the last records. Returns the records."""
        self.work.pump()
        moved: list[DiskRecord] = []
        while self.sent:
            message = self.sent.pop(0)
            assert isinstance(message, WriteRecords | ReadRecords)
            moved += message.records
            for rank in range(2):
                done = len(message.records) - lacking * rank
                problem = "checksum" if lacking * rank else ""
                self.work.on_answer(
                    RecordsMoved(rank, message.request_id, done, problem, "", done * RECORD, 10**9 * (rank + 1))
                )
        return moved
