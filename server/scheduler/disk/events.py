"""The pages on disk that KV events have reported."""

from array import array

from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.cache.radix_tree import Node
from numaserve.server.scheduler.disk.directory import DiskDirectory


class DiskEvents:
    """Notes in the `log` which pages are on disk, under the names that they have in memory.

    An event needs the tokens of a page, and the disk has digests alone. So a page is reported when its node is in
    memory too: when it is written, when it is read, and when it is computed although it is on disk. A page is reported
    after its parent, as readers find a page by its parents. A column of names, 8 bytes a slot, says later what is gone.

    Pages of adapters and with images are left out: for these an event needs the name of the adapter, which may be gone
    when the page is, and the tokens between the images.
    """

    def __init__(self, log: KVEventLog, directory: DiskDirectory) -> None:
        """Note from now on what is dropped from the `directory`."""
        self._log = log
        self._directory = directory
        self._names = array("Q")  # by slot; 0: the page was not reported
        self._is_closed = False
        directory.on_removed = self._removed

    def on_disk(self, node: Node) -> None:
        """Note that the page of a node in memory is on disk."""
        slot, parent = self._directory.slot_of(node.disk_digest), node.parent
        if slot is None or parent is None or self._name(slot) or not self._can_report(node):
            return
        if parent.parent is not None and not self._name(self._directory.slot_of(parent.disk_digest)):
            return
        self._names.extend([0] * (slot + 1 - len(self._names)))
        self._names[slot] = node.digest
        self._log.stored_on_disk(None if parent.parent is None else parent.digest, node.digest, node.key)

    def cleared(self) -> None:
        """Note that no page is on disk any more, nor found in memory."""
        self._names = array("Q")
        self._log.cleared_on_disk()

    def close(self) -> None:
        """Note that no page on disk is used any more."""
        self._is_closed = True
        for slot in range(len(self._names)):
            self._removed(slot)

    def _can_report(self, node: Node) -> bool:
        """Return whether events report a node in memory, and can report it on disk."""
        if self._is_closed or not node.digest:
            return False
        return node.scope.adapter is None and all(isinstance(each, int) for each in node.key)

    def _name(self, slot: int | None) -> int:
        return 0 if slot is None or slot >= len(self._names) else self._names[slot]

    def _removed(self, slot: int) -> None:
        name = self._name(slot)
        if name:
            self._names[slot] = 0
            self._log.removed_from_disk(name)
