"""The live nodes of an index."""

from array import array
from collections.abc import Mapping

from numaserve.server.kv_disk.cells import ADDED, CLEARED, DROPPED, GROUP, USED, Cell
from numaserve.server.scheduler.disk.changes import RECORD_KINDS, RecordKind

_NOBODY = 0


class _Live:
    """The cell that added the live node of each slot, and the time of its last use.

    Digests are reduced to 8 bytes. Two nodes with the same ones are taken for one, and one of the two is lost.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self.clear()

    def clear(self) -> None:
        self._slots: dict[int, int] = {}
        self._tags = array("Q")
        self.used_at = array("q")
        self.cells = array("Q")  # number of the cell plus one; 0: the slot is free

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, number: int, cell: Cell) -> None:
        if cell.slot >= self._num_slots:
            return
        missing = cell.slot + 1 - len(self.cells)
        if missing > 0:
            for column in (self._tags, self.used_at, self.cells):
                column.extend([_NOBODY] * missing)
        self.drop(cell.digest)  # a cell that dropped it was damaged
        if self.cells[cell.slot]:
            del self._slots[self._tags[cell.slot]]
        tag = _tag(cell.digest)
        self._slots[tag] = cell.slot
        self._tags[cell.slot], self.used_at[cell.slot], self.cells[cell.slot] = tag, cell.at, number + 1

    def drop(self, digest: bytes) -> None:
        slot = self._slots.pop(_tag(digest), None)
        if slot is not None:
            self.cells[slot] = _NOBODY

    def use(self, cell: Cell) -> None:
        slot = self._slots.get(_tag(cell.digest))
        if slot is not None:
            self.used_at[slot] = max(self.used_at[slot], cell.at)

    def has(self, number: int, cell: Cell) -> bool:
        return cell.slot < len(self.cells) and self.cells[cell.slot] == number + 1


class Replay:
    """The changes of an index, in order, and then the cells of its live nodes in a second pass over the file.

    It holds about 150 bytes for a live node, for as long as the index is read or compacted.
    """

    def __init__(self, num_slots: Mapping[RecordKind, int]) -> None:
        """Ignore nodes in slots beyond `num_slots`, by kind of record."""
        self._live = [_Live(num_slots[kind]) for kind in RECORD_KINDS]
        self.groups = {0: ""}  # names by number
        self.last_group = 0  # the highest number of a group in any cell

    @property
    def num_live(self) -> int:
        """The number of live nodes."""
        return sum(len(live) for live in self._live)

    def take(self, number: int, cell: Cell) -> None:
        """Take in the cell with that number."""
        self.last_group = max(self.last_group, cell.group)
        if cell.what == CLEARED:
            for live in self._live:
                live.clear()
        elif cell.what == GROUP:
            self.groups[cell.group] = cell.name
        elif cell.kind >= len(self._live):
            return
        elif cell.what == ADDED:
            self._live[cell.kind].add(number, cell)
        elif cell.what == DROPPED:
            self._live[cell.kind].drop(cell.digest)
        elif cell.what == USED:
            self._live[cell.kind].use(cell)

    def is_live(self, number: int, cell: Cell) -> bool:
        """Return whether the cell with that number added a live node whose group is known."""
        return cell.what == ADDED and cell.group in self.groups and self._of(cell).has(number, cell)

    def used_at(self, cell: Cell) -> int:
        """Return when a live node was last used, in unix seconds."""
        return self._of(cell).used_at[cell.slot]

    def _of(self, cell: Cell) -> _Live:
        return self._live[cell.kind]


def _tag(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")
