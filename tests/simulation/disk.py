"""The disks of simulated workers: they are slow, fail, hang, and give back other bits than they got."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from numaserve.server.scheduler.disk.changes import Added, Change, Cleared, Dropped, RecordKind
from numaserve.server.scheduler.disk.directory import DiskDirectory, Entry
from numaserve.server.scheduler.disk.shelves import Directories, RecordSizes
from numaserve.workers.interface.protocol import (
    CancelMove,
    DiskProblem,
    DiskReady,
    DiskRecord,
    FromDisk,
    ReadRecords,
    RecordsMoved,
    ToDisk,
    WriteRecords,
)

from tests.simulation.scenario import Scenario
from tests.simulation.world import World
from tests.support.simulated_memory import Content, SimulatedMemory

RECORD_BYTES = 1000
_WRITE_FAULTS = 0.1  # as a part of those of reads: the first one switches the tier off
_PROBLEMS: tuple[DiskProblem, ...] = ("checksum", "short", "io", "full")


class SimulatedDisks:
    """The records of all ranks, which outlive the workers: their content is one for all of them."""

    max_age_s: int | None = None  # a run is too short for records to become old

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self._noted: dict[tuple[str, bytes], Entry] = {}  # as the index has them
        self.kept_groups: set[str] | None = None  # None: all
        self.records: dict[tuple[str, int], tuple[bytes, Content]] = {}  # by kind and slot

    @property
    def folder(self) -> Path:
        """See `DiskIndex`."""
        return Path("/simulated")

    @property
    def limit_bytes(self) -> int:
        """See `DiskIndex`."""
        return 2 * RECORD_BYTES * self._scenario.ranks * self._scenario.disk_slots

    async def load(self, sizes: RecordSizes) -> Directories:
        """See `DiskIndex`."""
        if set(sizes.pages) != {RECORD_BYTES}:
            self._world.violate(f"records have other sizes: {sizes}")
        return Directories(DiskDirectory(self._scenario.disk_slots), DiskDirectory(self._scenario.disk_slots))

    def append(self, changes: Sequence[Change]) -> None:
        """See `DiskIndex`. What is noted must be there, and of a cache group that is."""
        for change in changes:
            if isinstance(change, Added):
                kind, entry = change
                if self.records.get((kind, entry.slot), (b"", None))[0] != entry.digest:
                    self._world.violate("the index has a record that was not written")
                if self.kept_groups is not None and entry.group not in self.kept_groups:
                    self._world.violate(f"the index has a record of the removed cache group {entry.group!r}")
                self._noted[kind, entry.digest] = entry
            elif isinstance(change, Dropped):
                self._noted.pop((change.kind, change.digest), None)
            elif isinstance(change, Cleared):
                self._noted.clear()

    def erase(self, slots: Mapping[RecordKind, Sequence[int]], done: Callable[[], None]) -> None:
        """See `DiskIndex`."""
        self._world.note("disk erases", {kind: len(each) for kind, each in slots.items()})
        at = self._world.loop.time() + self._world.rng.expovariate(20.0)
        self._world.loop.call_outside_at(at, self._erase, slots, done)

    def _erase(self, slots: Mapping[RecordKind, Sequence[int]], done: Callable[[], None]) -> None:
        """Erase records, none of which may be another prefix's by now."""
        noted = {(kind, entry.slot) for (kind, _), entry in self._noted.items()}
        for key in [(kind, slot) for kind, each in slots.items() for slot in each]:
            if key in noted:
                self._world.violate("a record of the index is erased")
            self.records.pop(key, None)
        done()

    def now(self) -> int:
        """See `DiskIndex`."""
        return round(self._world.loop.time())


@dataclass(eq=False)
class _Transfer:
    message: WriteRecords | ReadRecords
    done: int  # records that are moved before a problem
    problem: DiskProblem
    waits_for: list[object]  # plans that were sent before
    hangs: bool
    begun: bool = False
    closed: bool = False


class SimulatedTransfers:
    """Moves records between `memory` and `disks` for one life of the workers. `send` sends the answer of a rank."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        disks: SimulatedDisks,
        memory: SimulatedMemory,
        send: Callable[[int, FromDisk], None],
        faulty: Callable[[float], bool],
    ) -> None:
        self._world, self._scenario, self._disks, self._memory = world, scenario, disks, memory
        self._send, self._faulty = send, faulty
        self._transfers: dict[int, _Transfer] = {}
        self._over = False

    def measured(self) -> None:
        """Report that each rank has measured its disk, some time after it became ready."""
        seconds = self._world.rng.expovariate(20.0)
        for rank in range(self._scenario.ranks):
            anchor_bytes = RECORD_BYTES if self._scenario.snapshots or self._scenario.windows else 0
            ready = DiskReady(rank, RECORD_BYTES, anchor_bytes, self._scenario.disk_bytes_per_s)
            self._world.loop.call_outside_at(self._world.loop.time() + seconds, self._send, rank, ready)

    def take(self, message: ToDisk, plans: Sequence[object]) -> None:
        """Take a message in, which came after `plans` that have not been run."""
        if isinstance(message, CancelMove):
            transfer = self._transfers.get(message.request_id)
            if transfer is not None:
                self._world.note("disk cancelled")
                self._close(transfer, 0, "cancelled")
            return
        part = _WRITE_FAULTS if isinstance(message, WriteRecords) else 1.0
        hangs, fails = self._faulty(self._scenario.disk_hangs), self._faulty(part * self._scenario.disk_faults)
        rng, count = self._world.rng, len(message.records)
        done = rng.randrange(count) if fails else count
        problem = rng.choice(_PROBLEMS) if fails else ""
        self._world.note(f"disk.{'write' if isinstance(message, WriteRecords) else 'read'}", count, problem)
        self._transfers[message.request_id] = _Transfer(message, done, problem, list(plans), hangs)
        if hangs:
            self._world.note("disk hangs")
        self.ran(None)

    def ran(self, plan: object) -> None:
        """Begin what came after a plan that was run; with None, what came after none."""
        for transfer in [each for each in self._transfers.values() if not each.begun]:
            transfer.waits_for = [each for each in transfer.waits_for if each is not plan]
            if not transfer.waits_for and not transfer.hangs:
                transfer.begun = True
                self._begin(transfer)

    def stand_still(self) -> None:
        """Move nothing more."""
        self._over = True

    def _begin(self, transfer: _Transfer) -> None:
        seconds = self._world.rng.expovariate(1 / self._scenario.disk_s)
        move = self._write if isinstance(transfer.message, WriteRecords) else self._read
        for record in transfer.message.records[: transfer.done]:
            at = self._world.loop.time() + seconds * self._world.rng.random()
            self._world.loop.call_outside_at(at, move, transfer, record)
        self._world.loop.call_outside_at(self._world.loop.time() + seconds, self._end, transfer)

    def _write(self, _transfer: _Transfer, record: DiskRecord) -> None:
        if not self._over:
            self._disks.records[_kind(record), record.slot] = record.digest, self._memory.content(record)
            self._world.seen["record written"] += 1

    def _read(self, transfer: _Transfer, record: DiskRecord) -> None:
        digest, content = self._disks.records.get((_kind(record), record.slot), (b"", Content()))
        if digest != record.digest:
            transfer.done = min(transfer.done, transfer.message.records.index(record))
            transfer.problem = "replaced"
        elif not (self._over or transfer.closed):
            self._memory.set_content(record, content)
            self._world.seen["record read"] += 1

    def _end(self, transfer: _Transfer) -> None:
        self._close(transfer, transfer.done, transfer.problem)

    def _close(self, transfer: _Transfer, done: int, problem: DiskProblem) -> None:
        if transfer.closed or self._over:
            return
        transfer.closed = True
        del self._transfers[transfer.message.request_id]
        behind = self._world.rng.randrange(self._scenario.ranks) if problem else -1
        count = len(transfer.message.records)
        for rank in range(self._scenario.ranks):
            own = done if rank == behind else count if problem != "cancelled" else done
            told = problem if own < count else ""
            nbytes = own * RECORD_BYTES
            self._send(rank, RecordsMoved(rank, transfer.message.request_id, own, told, "", nbytes, 1_000_000))


def _kind(record: DiskRecord) -> str:
    return "anchors" if record.is_anchor else "pages"
