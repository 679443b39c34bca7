"""The nodes of the radix tree that are written to disk."""

from collections import deque
from collections.abc import Callable, Collection, Set
from typing import NamedTuple

from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.radix_tree import Node
from numaserve.server.scheduler.disk.changes import Change, RecordKind
from numaserve.server.scheduler.disk.digests import digests_of
from numaserve.server.scheduler.disk.directory import Entry
from numaserve.server.scheduler.disk.shelves import Shelf, Shelves
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.sequence import Sequence
from numaserve.workers.interface.protocol import DiskRecord

_BATCH_BYTES = 16 << 20  # of a request: some milliseconds of writing, and one sync
_MOST_RECORDS = 256  # of a request
_MOST_WAITING = 1 << 16  # records, of a disk that is slower than the prompts: others are offered again later


class Item(NamedTuple):
    """A page of a node, or its anchor."""

    kind: RecordKind
    node: Node


class Batch(NamedTuple):
    """Records that the ranks are writing. The last nodes of their paths are locked, and hence all."""

    shelves: Shelves
    items: list[Item]
    records: list[DiskRecord]
    locked: list[Node]


class DiskWrites:
    """Chooses what to write: nodes that an answered step has shown to be sound, after their parents, and their anchors
    after them.

    They are written as soon as they are sound, not when they are evicted: a server that is killed has written them, and
    nothing waits for the disk when pages run out. A page that is evicted before its turn is lost to the disk. Nothing
    is written of scopes with a salt, nor of hidden nodes. Nodes that are sound before the disk is known wait for it.

    A page is locked and an anchor pinned while it is written, so its memory is not given to others: a record never has
    the content of another prefix, not even one that does not count. One batch is written at a time.
    """

    def __init__(self, kv: KVCache, page_size: int, on_disk: Callable[[Node], None]) -> None:
        """`on_disk` is called with a node in memory whose page is on disk."""
        self._kv = kv
        self._page_size = page_size
        self._on_disk = on_disk
        self._queue: deque[Item] = deque()
        self.batch: Batch | None = None
        self.groups: Collection[str] | None = None  # cache groups that still exist; None: all do

    def offer(self, seq: Sequence, node: Node) -> None:
        """Write the path to a node of `seq`, as far as it was not offered before."""
        if seq.request.scope.salt or self._is_gone(node) or len(self._queue) >= _MOST_WAITING:
            return
        new = []
        while node.parent is not None and not node.disk_digest and not node.hidden:
            new.append(node)
            node = node.parent
        if new:
            digests = digests_of(seq, new[0].depth, self._page_size)
            for each in reversed(new):
                each.disk_digest = digests[each.depth - 1]
                self._queue.append(Item("pages", each))

    def offer_anchor(self, seq: Sequence, node: Node) -> None:
        """Write the anchor of a node of `seq`, after the path to it."""
        self.offer(seq, node)
        if node.disk_digest:
            self._queue.append(Item("anchors", node))

    def begin(self, shelves: Shelves, changes: list[Change]) -> Batch | None:
        """Begin a batch and return it; None while there is one, or nothing to write. What it replaces is added to
        `changes`."""
        if self.batch is not None:
            return None
        items: list[Item] = []
        records: list[DiskRecord] = []
        pages: set[Node] = set()  # of `items`
        nbytes = 0
        while self._queue and len(records) < _MOST_RECORDS and nbytes < _BATCH_BYTES:
            item = self._queue.popleft()
            if not self._is_wanted(item, pages, shelves):
                continue
            record = self._record(item, shelves.of(item.kind), changes)
            if record is None:
                continue
            items.append(item)
            records.append(record)
            nbytes += shelves.of(item.kind).record_bytes
            if not record.is_anchor:
                pages.add(item.node)
        if not items:
            return None
        parents = {item.node.parent for item in items}
        locked = [node for node in {item.node: None for item in items} if node not in parents]
        for node in locked:
            self._kv.tree.lock(node)
        self.batch = Batch(shelves, items, records, locked)
        return self.batch

    def answered(self, done: int, now: int, changes: list[Change]) -> None:
        """End the batch, of which the first `done` records are on disk."""
        batch = self._end()
        if batch is None:
            return
        for index, (item, record) in enumerate(zip(batch.items, batch.records, strict=True)):
            node, shelf = item.node, batch.shelves.of(item.kind)
            if index >= done or node.hidden or self._is_gone(node):
                self._give_back(shelf, node, record.slot)
                node.disk_digest = b""
                continue
            parent = b"" if node.parent is None or record.is_anchor else node.parent.disk_digest
            shelf.add(Entry(record.slot, record.digest, parent, node.depth, node.scope.group, now), changes)
            self._on_disk(node)

    def workers_died(self) -> None:
        """Forget the batch and all that was offered: the pages are lost."""
        batch = self._end()
        if batch is not None:
            for item, record in zip(batch.items, batch.records, strict=True):
                self._give_back(batch.shelves.of(item.kind), item.node, record.slot)
        self._queue.clear()

    def stop(self) -> None:
        """Forget all that was offered, but for the batch, which will be answered."""
        self._queue.clear()

    def _end(self) -> Batch | None:
        batch, self.batch = self.batch, None
        for item in batch.items if batch else ():
            if item.kind == "anchors":
                self._anchors.unpin(item.node)
        for node in batch.locked if batch else ():
            self._kv.tree.unlock(node)
        return batch

    def _is_wanted(self, item: Item, pages: Set[Node], shelves: Shelves) -> bool:
        """Return whether a record is to be written after the `pages` of the batch."""
        node, parent, on_disk = item.node, item.node.parent, shelves.pages
        if parent is None or node.hidden or parent.children.get(node.key) is not node:
            return False  # it was evicted
        if not node.disk_digest or self._is_gone(node) or (item.kind == "pages" and node in pages):
            return False  # it is to be offered again, or never, or was before its turn
        if shelves.of(item.kind).has(node.disk_digest):
            self._on_disk(node)
            return False
        if item.kind == "anchors":
            return node in pages or on_disk.has(node.disk_digest)
        if parent.parent is None or parent in pages or on_disk.has(parent.disk_digest):
            return True
        step = node
        while step.parent is not None and step not in pages and not on_disk.has(step.disk_digest):
            step.disk_digest = b""  # to be offered again: a node of the path was evicted from the disk, or not written
            step = step.parent
        return False

    def _give_back(self, shelf: Shelf, node: Node, slot: int) -> None:
        """Take back a slot that may have a record which does not count."""
        if self._is_gone(node):
            shelf.to_erase.append(slot)
        else:
            shelf.directory.give_back(slot)

    def _is_gone(self, node: Node) -> bool:
        """Return whether the keys of a node's cache group were removed; its last requests may still run."""
        return self.groups is not None and node.scope.group not in self.groups

    def _record(self, item: Item, shelf: Shelf, changes: list[Change]) -> DiskRecord | None:
        """Return the record of an item, with a slot; None where there is nothing to write, or no slot."""
        node, is_page = item.node, item.kind == "pages"
        holding = None if is_page else self._anchors.pin(node)
        if not is_page and holding is None:
            return None
        slot = shelf.take_slot(changes)
        if slot is None:
            if not is_page:
                self._anchors.unpin(node)
            return None
        if holding is None:
            return DiskRecord(slot, node.disk_digest, node.page)
        tails = [list(tail.pages) for tail in holding.tails]
        return DiskRecord(slot, node.disk_digest, snapshot=holding.snapshot, tails=tails)

    @property
    def _anchors(self) -> Anchors:
        if self._kv.anchors is None:
            raise ValueError("disk tier: the model has no anchors")
        return self._kv.anchors
