"""The engine's work for the disk tier: its messages to the workers, their deadlines, and its index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from numaserve.server.common.patience import PatientTimer
from numaserve.server.engine.clock import Clock
from numaserve.server.metrics.kv_disk_figures import DiskFigures, DiskMoved, DiskRecords
from numaserve.server.metrics.labels import DISK_PROBLEMS, DiskDirection
from numaserve.server.scheduler.disk.changes import Change, RecordKind
from numaserve.server.scheduler.disk.shelves import Directories, RecordSizes, Shelf, Shelves
from numaserve.server.scheduler.disk.tier import DiskMove, DiskTier
from numaserve.workers.interface.protocol import CancelMove, DiskReady, FromDisk, ReadRecords, RecordsMoved, ToDisk

_log = logging.getLogger(__name__)

_LEAST_READ_S = 2.0  # for a read, besides the time that computing the pages would take
_WRITE_S = 60.0  # for a batch
_OPEN_S = 60.0  # for ranks to open their files and to measure the disk
_TELLING_BYTES = 4 << 20  # of a read whose rate is the bandwidth of the disk
_RETRY_S = 60.0  # without a read, after which a slow disk may be twice as fast
_LOOK_S = 60.0  # between looks for records that are too old


class DiskIndex(Protocol):
    """The index of a folder."""

    async def load(self, sizes: RecordSizes) -> Directories:
        """Return the prefixes that the folder has, if ranks with records of these sizes have written them. Raises
        `OSError`."""

    @property
    def folder(self) -> Path:
        """The path of the folder."""

    @property
    def limit_bytes(self) -> int:
        """The most bytes that the files may have."""

    @property
    def max_age_s(self) -> int | None:
        """The seconds after which records that were not used are erased; None: they are kept."""

    def append(self, changes: Sequence[Change]) -> None:
        """Keep changes, in a thread."""

    def erase(self, slots: Mapping[RecordKind, Sequence[int]], done: Callable[[], None]) -> None:
        """Erase records in a thread, after the changes that were appended. `done` is called in the event loop then."""

    def now(self) -> int:
        """Return the time of the changes that are made now, in unix seconds."""


@dataclass
class _Sent:
    move: DiskMove
    timer: PatientTimer
    seconds: float
    answers: dict[int, RecordsMoved] = field(default_factory=dict)


class DiskWork:
    """Connects the scheduler's disk tier with the ranks and the index.

    The tier is opened when every rank has measured its disk and the index was read, while the server serves. It is
    switched off until the next start by a rank that cannot use its files, by an index that cannot be kept, and by a
    disk that does not answer: the server goes on without it.
    """

    def __init__(
        self,
        tier: DiskTier,
        index: DiskIndex,
        *,
        send: Callable[[ToDisk], None],
        wake: Callable[[], None],
        world_size: int,
        clock: Clock,
    ) -> None:
        """`send` sends a message to every rank. `wake` is called when sequences can go on."""
        self._tier = tier
        self._index = index
        self._send = send
        self._wake = wake
        self._world_size = world_size
        self._clock = clock
        self._ready: dict[int, DiskReady] = {}
        self._sent: dict[int, _Sent] = {}
        self._opening: asyncio.Task[None] | None = None
        self._has_workers = False
        self._probed_bytes_per_s = self._bytes_per_s = 0.0
        self._read_at = 0.0
        self._opened = PatientTimer(self._not_opened)
        self._sizes: dict[RecordKind, int] = {}  # bytes of a record of all ranks
        self._totals: dict[DiskDirection, DiskMoved] = {"read": DiskMoved(), "written": DiskMoved()}
        self.off_reason = ""  # why the tier is switched off; empty: it is not

    @property
    def folder(self) -> Path:
        """The path of the folder."""
        return self._index.folder

    def pump(self) -> None:
        """Send what the tier asks for, after the plans that were sent."""
        if not (self._tier.is_open and self._has_workers) or self.off_reason:
            return
        self._tier.now = self._index.now()
        self._retry()
        for move in self._tier.take_moves():
            seconds = _LEAST_READ_S + move.compute_s if isinstance(move.message, ReadRecords) else _WRITE_S
            request_id = move.message.request_id
            timer = PatientTimer(partial(self._late, request_id))
            timer.start(seconds)
            self._sent[request_id] = _Sent(move, timer, seconds)
            self._send(move.message)
        self.keep_changes()

    def keep_changes(self) -> None:
        """Have the changes kept that the tier has made, even if it is off: what was flushed must not come back."""
        changes = self._tier.take_changes()
        if changes:
            self._index.append(changes)
        slots = self._tier.take_erasable()
        if slots:
            _log.info(
                "the disk tier erases %d records that are too old, or of removed API keys",
                sum(map(len, slots.values())),
            )
            self._index.erase(slots, partial(self._tier.erased, slots))

    def keep_groups(self, groups: Collection[str]) -> None:
        """Erase the records of cache groups other than these, and write no more of them."""
        self._tier.keep_groups(groups)
        self.keep_changes()

    def figures(self) -> DiskFigures:
        """Return the current state, and the counters since the start."""
        counts, is_open = self._tier.counts, self._tier.is_open
        return DiskFigures(
            state="off" if self.off_reason else "open" if is_open else "opening",
            off_reason=self.off_reason,
            limit_bytes=self._index.limit_bytes,
            read_bytes_per_s=0.0 if self.off_reason or not self._has_workers else self._bytes_per_s,
            records={
                each.kind: DiskRecords(
                    len(each.directory), each.directory.num_slots, len(each.directory) * self._sizes[each.kind]
                )
                for each in (() if self._tier.shelves is None else self._tier.shelves.all)
            },
            moved=dict(self._totals),
            hits=counts.hits,
            hit_tokens=counts.hit_tokens,
            unpaid=counts.unpaid,
            problems={kind: counts.problems[kind] for kind in DISK_PROBLEMS},
        )

    def on_answer(self, message: FromDisk) -> None:
        """Process a message of a rank."""
        if isinstance(message, DiskReady):
            self._on_ready(message)
            return
        sent = self._sent.get(message.request_id)
        if sent is None or message.rank in sent.answers:
            _log.warning("worker %d reported a transfer that was not requested", message.rank)
            return
        sent.answers[message.rank] = message
        if len(sent.answers) == self._world_size:
            del self._sent[message.request_id]
            sent.timer.stop()
            self._moved(sent)

    def up(self) -> None:
        """Note that there are workers, which will report that they have opened their files."""
        if not self.off_reason:
            self._opened.start(_OPEN_S)

    def down(self) -> None:
        """Note that the workers are gone. The scheduler forgets what they were asked for."""
        self._opened.stop()
        self._has_workers = False
        self._ready.clear()
        for sent in self._sent.values():
            sent.timer.stop()
        self._sent.clear()
        self._tier.set_read_rate(0.0)

    def switch_off(self, reason: str) -> None:
        """Use the disk no more, until the next start."""
        if self.off_reason:
            return
        self.off_reason = reason
        _log.error("the disk tier is off until the next start: %s", reason)
        self._tier.close()
        for request_id in self._sent:
            self._send(CancelMove(request_id))

    def _on_ready(self, message: DiskReady) -> None:
        if message.problem:
            self.switch_off(f"worker {message.rank}: {message.problem}")
            return
        self._ready[message.rank] = message
        if len(self._ready) < self._world_size:
            return
        self._opened.stop()
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        elif self._tier.is_open:
            self._begin()

    def _not_opened(self) -> None:
        missing = sorted(set(range(self._world_size)) - self._ready.keys())
        self.switch_off(f"workers {missing} did not open their files within {_OPEN_S:g} s")

    async def _open(self) -> None:
        ready = [self._ready[rank] for rank in range(self._world_size)]
        sizes = RecordSizes([each.page_bytes for each in ready], [each.anchor_bytes for each in ready])
        self._sizes = {"pages": sum(sizes.pages), "anchors": sum(sizes.anchors)}
        try:
            directories = await self._index.load(sizes)
        except OSError as error:
            self.switch_off(str(error))
            return
        pages = Shelf("pages", directories.pages, max(sizes.pages))
        anchors = Shelf("anchors", directories.anchors, max(sizes.anchors)) if max(sizes.anchors) else None
        self._tier.open(Shelves(pages, anchors))
        if len(self._ready) == self._world_size:
            self._begin()
        self._drop_old()

    def _drop_old(self) -> None:
        """Erase the records that are too old, every minute: an idle server must do so too."""
        max_age_s = self._index.max_age_s
        if max_age_s is not None:
            self._tier.expire(self._index.now() - max_age_s)
            self.keep_changes()
            asyncio.get_running_loop().call_later(_LOOK_S, self._drop_old)

    def _begin(self) -> None:
        if self.off_reason:
            return  # a sequence would wait for a read that is never sent
        self._has_workers = True
        self._probed_bytes_per_s = self._bytes_per_s = min(each.read_bytes_per_s for each in self._ready.values())
        self._tier.set_read_rate(self._bytes_per_s)
        pages = self.figures().records["pages"].number
        _log.info("the disk tier has %d pages and reads %.2f GB/s per rank", pages, self._bytes_per_s / 1e9)
        self._wake()

    def _moved(self, sent: _Sent) -> None:
        answers = list(sent.answers.values())
        last = min(answers, key=lambda each: each.done)
        is_read = isinstance(sent.move.message, ReadRecords)
        self._count("read" if is_read else "written", answers)
        if is_read:
            self._learn(answers)
        if last.problem not in ("", "cancelled"):
            _log.warning("the disk tier: a record could not be moved (%s %s)", last.problem, last.message)
        if last.problem == "cancelled" and not last.nbytes:
            self.switch_off("the disk returned nothing in the time that computing the pages would have taken")
        if last.problem and not is_read:  # each later write would fail too, with a line in the log
            self.switch_off(f"a write failed ({last.problem} {last.message})")
        self._tier.moved(last.request_id, last.done, last.problem)
        self._wake()
        self.pump()

    def _count(self, direction: DiskDirection, answers: Sequence[RecordsMoved]) -> None:
        before, seconds = self._totals[direction], max(each.nanoseconds for each in answers) / 1e9
        nbytes = sum(each.nbytes for each in answers)
        self._totals[direction] = DiskMoved(before.nbytes + nbytes, before.seconds + seconds)

    def _learn(self, answers: Sequence[RecordsMoved]) -> None:
        """Learn the bandwidth from a read."""
        slowest = min(answers, key=lambda each: each.nbytes / max(each.nanoseconds, 1))
        self._read_at = self._clock()
        if slowest.nanoseconds and (slowest.nbytes >= _TELLING_BYTES or slowest.problem == "cancelled"):
            rate = slowest.nbytes / slowest.nanoseconds * 1e9
            self._bytes_per_s = max((self._bytes_per_s + rate) / 2 if slowest.problem == "" else rate, 1.0)
            self._tier.set_read_rate(0.0 if self.off_reason else self._bytes_per_s)

    def _retry(self) -> None:
        """Give a disk that was slow another chance after a while."""
        if self._bytes_per_s < self._probed_bytes_per_s and self._clock() - self._read_at > _RETRY_S:
            self._read_at = self._clock()
            self._bytes_per_s = min(2 * self._bytes_per_s, self._probed_bytes_per_s)
            self._tier.set_read_rate(self._bytes_per_s)

    def _late(self, request_id: int) -> None:
        """Cancel a request that takes too long."""
        sent = self._sent[request_id]
        if not isinstance(sent.move.message, ReadRecords):
            self.switch_off(f"the disk did not complete a write within {sent.seconds:g} s")
            return
        self._send(CancelMove(request_id))
        sent.timer = PatientTimer(partial(self.switch_off, "a worker did not cancel a read"))
        sent.timer.start(_WRITE_S)
