"""Changes for tests of the index, and an index in a folder."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from numaserve.server.kv_disk.cells import Header
from numaserve.server.kv_disk.index import Index
from numaserve.server.scheduler.disk.changes import Added, Change, Dropped, RecordKind, Used
from numaserve.server.scheduler.disk.directory import Entry

NUM_SLOTS: dict[RecordKind, int] = {"pages": 64, "anchors": 8}
HEADER = Header({"contents": bytes(range(16))}, "models/tiny", [8192, 8192], [0, 0], b"")


def digest_of(name: object) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


def entry_of(number: int, slot: int | None = None, group: str = "", at: int = 100) -> Entry:
    """The node `number` of a chain of eight nodes each."""
    parent = digest_of(number - 1) if number % 8 else b""
    return Entry(number if slot is None else slot, digest_of(number), parent, number % 8 + 1, group, at)


def sample_changes() -> list[Change]:
    """A few changes of each kind, after which 12 nodes are live."""
    return [
        *(Added("pages", entry_of(number, group="key a" if number > 4 else "")) for number in range(10)),
        Added("anchors", entry_of(3)),
        Added("anchors", entry_of(4, group="group b")),
        Dropped("pages", digest_of(9)),
        Used("pages", digest_of(8), 200),
        Added("pages", entry_of(16, slot=7, group="key c")),
        Added("pages", entry_of(17, slot=20, group="key c")),
    ]


def make_index(folder: Path, changes: Sequence[Change] = (), num_slots: dict[RecordKind, int] = NUM_SLOTS) -> None:
    """Write an index of `changes`."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        index = Index.create(fd, HEADER, num_slots)
        index.append(changes)
        index.close()
    finally:
        os.close(fd)


def restored(folder: Path) -> tuple[dict[RecordKind, list[Entry]], int]:
    """The nodes that a start finds, and the number of damaged cells. Raises `HeaderError`."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        index = Index.open(fd, NUM_SLOTS)
        try:
            return index.restore()
        finally:
            index.close()
    finally:
        os.close(fd)


def nodes_of(entries: dict[RecordKind, list[Entry]]) -> set[tuple[RecordKind, Entry]]:
    return {(kind, entry) for kind, found in entries.items() for entry in found}


def without_times(nodes: Iterable[tuple[RecordKind, Entry]]) -> set[tuple[RecordKind, Entry]]:
    return {(kind, entry._replace(used_at=0)) for kind, entry in nodes}
