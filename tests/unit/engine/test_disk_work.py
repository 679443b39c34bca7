"""What the disk tier reports, and what becomes of records that must go, over ranks and an index of the test."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from numaserve.server.engine.disk_work import DiskWork
from numaserve.server.engine.views.gauges import Gauges
from numaserve.server.engine.views.info import disk_info
from numaserve.server.metrics.kv_disk_figures import DiskRecords
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.disk.changes import Added, Change, Cleared, Dropped, RecordKind
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

    def __init__(self) -> None:
        self.kept: list[Change | dict[RecordKind, list[int]]] = []
        self.erased: list[Callable[[], None]] = []

    async def load(self, sizes: RecordSizes) -> Directories:
        return Directories(DiskDirectory(MOST), DiskDirectory(0))

    def append(self, changes: Sequence[Change]) -> None:
        self.kept += changes

    def erase(self, slots: Mapping[RecordKind, Sequence[int]], done: Callable[[], None]) -> None:
        self.kept.append({kind: list(each) for kind, each in slots.items()})
        self.erased.append(done)

    def now(self) -> int:
        return 7


class Ranks:
    """A server of two ranks, whose steps take a second for each token."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(plan_limits(40, 64, page_size=PAGE, kv_disk=True))
        assert self.scheduler.disk is not None
        self.tier = self.scheduler.disk
        self.tier._compute_seconds = lambda first, number: float(number)
        self.index = Index()
        self.sent: list[ToDisk] = []
        self.work = DiskWork(
            self.tier, self.index, send=self.sent.append, wake=lambda: None, world_size=2, clock=lambda: 0.0
        )

    async def open(self, bytes_per_s: float = 1e9) -> None:
        for rank in range(2):
            self.work.on_answer(DiskReady(rank, RECORD, 0, bytes_per_s))
        while not self.tier.is_open:
            await asyncio.sleep(0)

    def serve(self, name: str, client: Client = TEAM) -> None:
        """Serve the prompt, and move what the tier wants to be moved meanwhile."""
        self.scheduler.add(sequence(name, PROMPT, SamplingParams(), 1, client=client))
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


async def test_what_is_written_and_read_is_counted_and_shown() -> None:
    ranks, metrics = Ranks(), Metrics("m")
    gauges = Gauges(metrics, ranks.scheduler, disk=ranks.work.figures)

    def value(name: str, **labels: str) -> float | None:
        gauges.set()
        return metrics.registry.get_sample_value(f"numaserve_kv_disk_{name}", {"model_name": "m", **labels})

    assert (value("state", state="opening"), value("state", state="open")) == (1, 0)
    await ranks.open()
    ranks.serve("first")
    assert len(ranks.move()) == 5
    assert (value("state", state="open"), value("limit_bytes")) == (1, 1 << 20)
    assert (value("records", kind="pages"), value("bytes", kind="pages")) == (5, 10 * RECORD)
    assert value("moved_bytes_total", direction="written") == 10 * RECORD
    assert value("moved_seconds_total", direction="written") == 2
    assert value("moved_bytes_total", direction="read") == 0

    ranks.scheduler.kv.flush()
    ranks.serve("second")
    assert (value("hits_total"), value("hit_tokens_total")) == (1, 5 * PAGE)
    assert value("moved_bytes_total", direction="read") == 10 * RECORD
    ranks.scheduler.kv.flush()
    ranks.tier.set_read_rate(1.0)
    ranks.serve("third")
    assert (value("hits_total"), value("unpaid_total")) == (1, 1)

    info = disk_info("/kv", ranks.work.figures())
    assert info["pages"] == {"number": 5, "limit": MOST, "bytes": 10 * RECORD}
    assert (info["path"], info["state"], info["off_reason"], "anchors" in info) == ("/kv", "open", None, False)
    ranks.work.switch_off("io: it broke")
    assert (value("state", state="off"), value("read_bytes_per_second")) == (1, 0)
    assert disk_info("/kv", ranks.work.figures())["off_reason"] == "io: it broke"


async def test_a_prefix_that_cannot_be_read_whole_counts_as_far_as_it_was_read() -> None:
    ranks = Ranks()
    await ranks.open()
    ranks.serve("first")
    ranks.move()
    ranks.scheduler.kv.flush()
    ranks.scheduler.add(sequence("second", PROMPT, SamplingParams(), 1, client=TEAM))
    assert ranks.scheduler.schedule() is None
    ranks.move(lacking=2)
    figures = ranks.work.figures()
    assert (figures.hits, figures.hit_tokens, figures.problems["checksum"]) == (1, 3 * PAGE, 1)
    assert figures.records["pages"] == DiskRecords(4, MOST, 8 * RECORD)  # the page that is damaged is gone


async def test_a_flush_is_kept_although_no_step_follows_or_the_tier_is_off_or_was_not_open() -> None:
    for off in (False, True):
        ranks = Ranks()
        await ranks.open()
        ranks.serve("first")
        ranks.move()
        if off:
            ranks.work.switch_off("the disk is slow")
        assert ranks.scheduler.flush_cache()
        ranks.work.keep_changes()
        assert ranks.index.kept[-1] == Cleared()
        assert not ranks.work.figures().records["pages"].number
    early = Ranks()
    assert early.scheduler.flush_cache()
    await early.open()
    early.work.pump()
    assert early.index.kept == [Cleared()]


async def test_records_of_a_removed_group_are_dropped_then_erased_and_only_then_replaced() -> None:
    ranks = Ranks()
    await ranks.open()
    ranks.serve("of the team")
    ranks.serve("of all", Client("other"))
    ranks.move()
    gone = {each.entry.digest for each in ranks.index.kept if isinstance(each, Added) and each.entry.group == "team"}
    assert (len(gone), ranks.work.figures().records["pages"].number) == (5, 10)
    ranks.index.kept.clear()

    ranks.work.keep_groups({""})
    *dropped, erased = ranks.index.kept
    assert {each.digest for each in dropped if isinstance(each, Dropped)} == gone
    assert isinstance(erased, dict)
    assert ranks.work.figures().records["pages"].number == 5
    directory = ranks.tier.shelves.pages.directory  # type: ignore[union-attr]
    assert directory.take_slot() == (10, None)  # no slot that is being erased
    ranks.index.erased.pop()()
    taken = directory.take_slot()
    assert taken is not None
    assert taken[0] in erased["pages"]


async def test_a_record_that_is_being_written_when_its_group_is_removed_is_erased_and_no_more_are_written() -> None:
    ranks = Ranks()
    await ranks.open()
    ranks.serve("of the team")
    ranks.work.keep_groups({""})
    assert ranks.index.kept == []
    slots = [record.slot for record in ranks.move()]
    assert ranks.index.kept == [{"pages": slots}]
    ranks.scheduler.kv.flush()
    ranks.serve("of the team again")
    assert ranks.move() == []
