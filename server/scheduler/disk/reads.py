"""Prefixes that are read from disk for sequences that wait."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from numaserve.server.scheduler.cache.holdings import Holding
from numaserve.server.scheduler.cache.mark_kinds import MarkKind
from numaserve.server.scheduler.cache.marks import Mark
from numaserve.server.scheduler.cache.radix_tree import Node
from numaserve.server.scheduler.disk.changes import Change
from numaserve.server.scheduler.disk.counts import DiskCounts
from numaserve.server.scheduler.disk.digests import digests_of
from numaserve.server.scheduler.disk.shelves import Shelves
from numaserve.server.scheduler.kv_cache import FoundPage, KVCache, TrustedPrefix
from numaserve.server.scheduler.queue.queue import WaitingQueue
from numaserve.server.scheduler.sequence import Sequence
from numaserve.workers.interface.protocol import DiskRecord

_MOST_READS = 2  # for which a sequence waits: the pages of a read may be evicted before the sequence has its turn
_WORTH_PAGES = 2


class PageToRead(NamedTuple):
    """A page of a prefix that is on disk, and the page of memory that gets it."""

    page: FoundPage
    record: DiskRecord


class AnchorToRead(NamedTuple):
    """An anchor that is on disk, and the memory that gets what it holds."""

    holding: Holding
    record: DiskRecord


@dataclass(eq=False)
class Read:
    """A run of pages that the ranks are reading, after those of `node`, which is locked, and the anchor after them."""

    request_id: int
    seq: Sequence  # that has this prefix
    node: Node
    pages: list[PageToRead]
    anchor: AnchorToRead | None
    begin: int  # pages of the prefix from which a sequence could begin before
    depth: int  # likewise, when all is read
    compute_s: float  # that computing the same would take
    waiting: list[Sequence]
    is_void: bool = False  # the cache was flushed meanwhile

    @property
    def records(self) -> list[DiskRecord]:
        """The records that ranks read."""
        return [*(each.record for each in self.pages), *(() if self.anchor is None else (self.anchor.record,))]


class DiskReads:
    """Sets sequences aside whose prefix is on disk, and lets them go on when the ranks have read it.

    A sequence waits only for what is read sooner than computed. Others may overtake it.

    The pages that are read are neither free nor in the tree until all ranks have answered. Then the tree gets as many
    as every rank has read, and the rest is free. No rank copies to a page after its answer.

    Nothing deadlocks: a read ends by its answers, by a deadline, or with the workers, and needs no sequence to go on.
    Meanwhile its pages may be lacking to a running sequence, which then gives way to itself and waits for them.
    """

    def __init__(
        self,
        kv: KVCache,
        waiting: WaitingQueue,
        shelves: Shelves,
        *,
        page_size: int,
        compute_seconds: Callable[[int, int], float],
        next_id: Callable[[], int],
        counts: DiskCounts,
        on_disk: Callable[[Node], None],
    ) -> None:
        """`compute_seconds` predicts the time of a prompt's positions, given the first one and their number. `next_id`
        gives each request to the ranks its number. `on_disk` is called with a node in memory whose page is on disk."""
        self._kv = kv
        self._waiting = waiting
        self._shelves = shelves
        self._size = page_size
        self._compute_seconds = compute_seconds
        self._next_id = next_id
        self._counts = counts
        self._on_disk = on_disk
        self._reads: dict[int, Read] = {}
        self._new: list[Read] = []
        self.bytes_per_s = 0.0  # of the slowest rank; 0: nothing is read

    @property
    def reads(self) -> Collection[Read]:
        """The reads that the ranks have not answered."""
        return self._reads.values()

    def begins(self, seq: Sequence, headroom: int) -> bool:
        """Set the first sequence of the queue aside if it is to wait for the disk; False if not.

        `headroom` pages are left to the running sequences.
        """
        if seq.request.scope.salt or seq.disk_reads == _MOST_READS or not self.bytes_per_s:
            return False
        found, end = self._kv.trusted_prefix(seq), self._kv.max_cached_pages(seq)
        if end < found.usable + _WORTH_PAGES:
            return False
        digests_of(seq, end, self._size)
        read = self._of(seq, found, end) or self._begin(seq, found, end, headroom)
        if read is None:
            return False
        read.waiting.append(seq)
        seq.disk_reads += 1
        self._waiting.set_aside(seq)
        return True

    def take_new(self) -> list[Read]:
        """Return the reads that began since the last call."""
        new, self._new = self._new, []
        return new

    def answered(self, request_id: int, done: int, problem: str, changes: list[Change]) -> None:
        """End a read whose first `done` records are in memory on all ranks. Without effect after its end.

        With a `problem`, the next record cannot be read: its loss is added to `changes`.
        """
        read = self._reads.pop(request_id, None)
        if read is None:
            return
        if problem and done < len(read.records):
            record, anchors = read.records[done], self._shelves.anchors
            shelf = anchors if record.is_anchor and anchors is not None else self._shelves.pages
            shelf.drop(record.digest, changes)
        self._count(read, done)
        self._end(read, 0 if read.is_void else done)

    def flush(self) -> None:
        """Let the tree get nothing of what is being read."""
        for read in self._reads.values():
            read.is_void = True

    def stop(self) -> None:
        """End the reads that the ranks were not asked for."""
        for read in self.take_new():
            del self._reads[read.request_id]
            self._end(read, 0)

    def workers_died(self) -> None:
        """Forget all reads, and let their sequences go on."""
        for read in self._reads.values():
            self._end(read, 0)
        self._reads.clear()
        self._new.clear()

    def _begin(self, seq: Sequence, found: TrustedPrefix, end: int, headroom: int) -> Read | None:
        """Begin a read of what a sequence lacks; None if it does not pay."""
        node = found.node
        self._kv.tree.lock(node)  # before pages are counted: those of its path cannot be had
        read = self._made(seq, found, end, max(0, self._kv.num_available - headroom))
        if read is None:
            self._kv.tree.unlock(node)
            return None
        self._reads[read.request_id] = read
        self._new.append(read)
        return read

    def _made(self, seq: Sequence, found: TrustedPrefix, end: int, most: int) -> Read | None:
        """Return a read of at most `most` pages, for which it has taken memory; None if it does not pay."""
        start = found.node.depth
        slots = list(self._shelves.pages.slots_of(seq.digests[start:end]))[:most]
        depth = self._shelves.deepest_anchor(seq.digests, found.usable, start + len(slots))
        if depth < found.usable + _WORTH_PAGES:
            return None
        compute_s = self._compute_seconds(found.usable * self._size, (depth - found.usable) * self._size)
        if self._bytes(found, depth) / self.bytes_per_s >= compute_s:
            self._counts.unpaid += not seq.disk_is_slower
            seq.disk_is_slower = True
            return None
        anchor = None
        if self._shelves.anchors is not None:
            anchor = self._anchor_to_read(seq, depth)
            if anchor is None:
                return None
        numbers = self._kv.take(max(0, depth - start))
        pages = [
            PageToRead(self._kv.found_page(seq, at, number), DiskRecord(slot, seq.digests[at], number))
            for at, (slot, number) in enumerate(zip(slots, numbers, strict=False), start)
        ]
        return Read(self._next_id(), seq, found.node, pages, anchor, found.usable, depth, compute_s, [])

    def _bytes(self, found: TrustedPrefix, depth: int) -> int:
        """Return the bytes on disk of what a prefix of `depth` pages lacks."""
        nbytes = max(0, depth - found.node.depth) * self._shelves.pages.record_bytes
        return nbytes if self._shelves.anchors is None else nbytes + self._shelves.anchors.record_bytes

    def _anchor_to_read(self, seq: Sequence, depth: int) -> AnchorToRead | None:
        """Return the anchor on disk after `depth` pages of a sequence, with memory for it; None if there is none."""
        digest, shelf, anchors = seq.digests[depth - 1], self._shelves.anchors, self._kv.anchors
        slot = None if shelf is None else shelf.directory.slot_of(digest)
        if slot is None or anchors is None:
            return None
        tails = () if self._kv.windows is None else self._kv.windows.lacking(depth * self._size)
        holding = anchors.take_empty(tails)
        if holding is None:
            return None
        pages = [list(tail.pages) for tail in holding.tails]
        return AnchorToRead(holding, DiskRecord(slot, digest, snapshot=holding.snapshot, tails=pages))

    def _count(self, read: Read, done: int) -> None:
        """Count a read of which `done` records are in memory. Pages without their anchor spare nothing."""
        pages = min(done, len(read.pages))
        end = read.node.depth + pages if read.anchor is None else read.depth if done == len(read.records) else 0
        if end > read.begin and not read.is_void:
            self._counts.hits += len(read.waiting)
            self._counts.hit_tokens += (end - read.begin) * self._size

    def _end(self, read: Read, done: int) -> None:
        """Give the tree what was read, and let the sequences go on that have waited."""
        self._adopt(read, done)
        for seq in read.waiting:
            self._waiting.prefix_is_there(seq)

    def _adopt(self, read: Read, done: int) -> None:
        """Give the tree what was read, and free the rest."""
        node = read.node
        for each in read.pages[:done]:
            node = self._kv.adopt(node, each.page)
            node.disk_digest = each.record.digest
            self._on_disk(node)
        self._kv.allocator.free([each.page.number for each in read.pages[done:]])
        self._kv.tree.trust(node)
        if read.anchor is not None:
            self._adopt_anchor(read, read.anchor.holding, node, is_read=done == len(read.records))
        self._kv.tree.unlock(node)

    def _adopt_anchor(self, read: Read, holding: Holding, node: Node, *, is_read: bool) -> None:
        """Give the anchor to its node on the path to `node`, if it was read."""
        anchors, seq = self._kv.anchors, read.seq
        if anchors is None:
            return
        anchors.filled(holding)
        if not is_read:
            anchors.free(holding)
            return
        while node.depth > read.depth and node.parent is not None:
            node = node.parent
        anchors.give(Mark(read.depth * self._size, holding, MarkKind.PREFIX), node, seq.tokens, seq.keys, sound=True)

    def _of(self, seq: Sequence, found: TrustedPrefix, end: int) -> Read | None:
        """Return the read that has what a sequence lacks, if there is one."""
        lacking = set(seq.digests[found.usable : end])
        return next((read for read in self._reads.values() if read.records[-1].digest in lacking), None)
