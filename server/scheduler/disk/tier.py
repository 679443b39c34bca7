"""The disk tier as the scheduler sees it: which pages the ranks write, and which they read."""

import itertools
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from numaserve.server.scheduler.cache.holdings import Holding
from numaserve.server.scheduler.cache.radix_tree import Node
from numaserve.server.scheduler.disk.changes import Change, RecordKind
from numaserve.server.scheduler.disk.counts import DiskCounts
from numaserve.server.scheduler.disk.digests import digests_of
from numaserve.server.scheduler.disk.events import DiskEvents
from numaserve.server.scheduler.disk.reads import DiskReads
from numaserve.server.scheduler.disk.shelves import Shelves
from numaserve.server.scheduler.disk.writes import DiskWrites
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.queue.queue import WaitingQueue
from numaserve.server.scheduler.sequence import Sequence
from numaserve.workers.interface.protocol import DiskProblem, ReadRecords, WriteRecords


@dataclass(frozen=True)
class DiskMove:
    """A request to the ranks."""

    message: WriteRecords | ReadRecords
    compute_s: float = 0.0  # that computing what is read would take


class DiskTier:
    """Connects pages in memory with those on disk. Until `open` it only notes what is to be written.

    Nothing here waits, reads a clock or talks to anyone. The owner sends what `take_moves` returns, after the plans
    that were made before, gives the answers to `moved`, and has `take_changes` kept.
    """

    def __init__(
        self,
        kv: KVCache,
        waiting: WaitingQueue,
        page_size: int,
        compute_seconds: Callable[[int, int], float],
        is_suspect: Callable[[Sequence], bool],
    ) -> None:
        """`compute_seconds` predicts the time of a prompt's positions, given the first one and their number. Nothing is
        written for a sequence that `is_suspect`: workers may have died of it."""
        self._kv = kv
        self._waiting = waiting
        self._size = page_size
        self._compute_seconds = compute_seconds
        self._is_suspect = is_suspect
        self._ids = itertools.count()
        self._shelves: Shelves | None = None
        self._writes = DiskWrites(kv, page_size, self._on_disk)
        self._reads: DiskReads | None = None
        self._events: DiskEvents | None = None
        self._write_id = -1
        self._changes: list[Change] = []
        self._groups: Collection[str] | None = None
        self._is_flushed = False  # before it was opened
        self.counts = DiskCounts()
        self.now = 0  # unix seconds; the owner sets it
        kv.on_sound = self._unless_suspect(self._writes.offer)
        kv.on_sound_anchor(self._unless_suspect(self._writes.offer_anchor))

    @property
    def is_open(self) -> bool:
        """Whether pages are written and read."""
        return self._shelves is not None

    @property
    def shelves(self) -> Shelves | None:
        """The records on disk; None: the tier was not opened yet."""
        return self._shelves

    @property
    def held_nodes(self) -> list[Node]:
        """The nodes of the radix tree that it locks."""
        batch = self._writes.batch
        reads = () if self._reads is None else self._reads.reads
        return [*(() if batch is None else batch.locked), *(each.node for each in reads)]

    @property
    def held_pages(self) -> list[int]:
        """The pages of memory that are neither free, nor in the tree, nor a sequence's."""
        reads = () if self._reads is None else self._reads.reads
        return [page.number for each in reads for page, _ in each.pages]

    @property
    def held_anchors(self) -> list[Holding]:
        """The memory of anchors that is neither free, nor a node's, nor a sequence's."""
        reads = () if self._reads is None else self._reads.reads
        return [each.anchor.holding for each in reads if each.anchor is not None]

    def open(self, shelves: Shelves) -> None:
        """Begin to write to a disk with these records, and to read from it when its rate is set."""
        self._shelves = shelves
        if self._kv.log is not None and shelves.anchors is None:
            self._events = DiskEvents(self._kv.log, shelves.pages.directory)
        self._reads = DiskReads(
            self._kv,
            self._waiting,
            shelves,
            page_size=self._size,
            compute_seconds=self._compute_seconds,
            next_id=lambda: next(self._ids),
            counts=self.counts,
            on_disk=self._on_disk,
        )
        self._kv.on_found = self._found
        if self._is_flushed:
            shelves.clear(self._changes)
        if self._groups is not None:
            self.keep_groups(self._groups)

    def set_read_rate(self, bytes_per_s: float) -> None:
        """Note the bandwidth of the slowest rank. 0: nothing is read."""
        if self._reads is not None:
            self._reads.bytes_per_s = bytes_per_s

    def begins(self, seq: Sequence, headroom: int) -> bool:
        """Set the first sequence of the queue aside if it is to wait for pages on disk; see `DiskReads.begins`."""
        return self._reads is not None and self._reads.begins(seq, headroom)

    def take_moves(self) -> list[DiskMove]:
        """Return the requests to send now."""
        moves: list[DiskMove] = []
        if self._reads is not None:
            moves += [
                DiskMove(ReadRecords(each.request_id, each.records), each.compute_s) for each in self._reads.take_new()
            ]
        batch = None if self._shelves is None else self._writes.begin(self._shelves, self._changes)
        if batch is not None:
            self._write_id = next(self._ids)
            moves.append(DiskMove(WriteRecords(self._write_id, batch.records)))
        return moves

    def moved(self, request_id: int, done: int, problem: DiskProblem) -> None:
        """Note that all ranks have answered a request, of which the first `done` records were moved on every rank."""
        if problem:
            self.counts.problems[problem] += 1
        if request_id == self._write_id:
            self._writes.answered(done, self.now, self._changes)
            return
        lost = "" if problem == "cancelled" else problem
        if self._reads is not None:
            self._reads.answered(request_id, done, lost, self._changes)

    def take_changes(self) -> list[Change]:
        """Return the changes of the directory since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def keep_groups(self, groups: Collection[str]) -> None:
        """Forget the records of all other cache groups, and write no more of them."""
        self._groups = self._writes.groups = groups
        for shelf in () if self._shelves is None else self._shelves.all:
            shelf.drop_groups(groups, self._changes)

    def expire(self, before: int) -> None:
        """Forget the records that were last used before a time, in unix seconds."""
        for shelf in () if self._shelves is None else self._shelves.all:
            shelf.expire(before, self._changes)

    def take_erasable(self) -> dict[RecordKind, list[int]]:
        """Return the slots of records to erase after `take_changes` is kept; `erased` is to be called then."""
        taken: dict[RecordKind, list[int]] = {}
        for shelf in () if self._shelves is None else self._shelves.all:
            if shelf.to_erase:
                taken[shelf.kind] = shelf.to_erase.copy()
                shelf.to_erase.clear()
        return taken

    def erased(self, slots: Mapping[RecordKind, ListOf[int]]) -> None:
        """Note that slots of `take_erasable` can have other records."""
        for shelf in () if self._shelves is None else self._shelves.all:
            for slot in slots.get(shelf.kind, ()):
                shelf.directory.give_back(slot)

    def workers_died(self) -> None:
        """Forget what the ranks were asked for: they are gone, with the memory of all pages."""
        self._writes.workers_died()
        if self._reads is not None:
            self._reads.workers_died()

    def flush(self) -> None:
        """Forget all that is on disk, and what is on its way to memory or to disk. The tree has no other page."""
        self._kv.tree.hide_all()
        if self._reads is not None:
            self._reads.flush()
        self._is_flushed = self._shelves is None
        if self._shelves is not None:
            self._shelves.clear(self._changes)
        if self._events is not None:
            self._events.cleared()

    def close(self) -> None:
        """Stop to write and to read. What the ranks were asked for is to be cancelled, and answered."""
        self._kv.on_found = self._kv.on_sound = None
        self._kv.on_sound_anchor(None)
        self.set_read_rate(0.0)
        self._writes.stop()
        if self._reads is not None:
            self._reads.stop()
        if self._events is not None:
            self._events.close()

    def _found(self, seq: Sequence, node: Node) -> None:
        """Make the prefix up to a node of `seq` the most recently used one."""
        if self._shelves is not None and not seq.request.scope.salt:
            path = digests_of(seq, node.depth, self._size)[: node.depth]
            self._shelves.use(path, self.now, self._changes)

    def _on_disk(self, node: Node) -> None:
        """Report that the page of a node in memory is on disk."""
        if self._events is not None:
            self._events.on_disk(node)

    def _unless_suspect(self, offer: Callable[[Sequence, Node], None]) -> Callable[[Sequence, Node], None]:
        def offered(seq: Sequence, node: Node) -> None:
            if not self._is_suspect(seq):
                offer(seq, node)

        return offered
