"""Reading the folder of a server for people: what is on disk, and whether it is sound."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from numaserve.server.kv_disk.cells import Header, HeaderError
from numaserve.server.kv_disk.folder import record_file_name
from numaserve.server.kv_disk.index import Index
from numaserve.server.scheduler.disk.changes import RECORD_KINDS, RecordKind
from numaserve.server.scheduler.disk.directory import Entry
from numaserve.workers.interface.errors import OperatorError

_ANY_SLOTS: dict[RecordKind, int] = dict.fromkeys(RECORD_KINDS, 1 << 32)
# Why a record is not that of a prefix; "": it is.
Check = Callable[[memoryview, bytes], str]


@dataclass(frozen=True)
class FolderContents:
    """The contents of an index."""

    header: Header
    entries: dict[RecordKind, list[Entry]]
    num_damaged: int  # cells of the index

    def record_bytes(self, kind: RecordKind) -> list[int]:
        """Return the bytes of a record by rank; 0: the rank has none of this kind."""
        return self.header.page_bytes if kind == "pages" else self.header.anchor_bytes


class Fault(NamedTuple):
    """A record that is not as it was written."""

    file: str
    slot: int
    problem: str


def read_folder(path: Path) -> FolderContents:
    """Return what is in a folder, which a server may use meanwhile. Raises `OperatorError`."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            index = Index.open(folder, _ANY_SLOTS)
            try:
                return FolderContents(index.header, *index.restore())
            finally:
                index.close()
        finally:
            os.close(folder)
    except (OSError, HeaderError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OperatorError(
            f"{path}: no cached prefixes can be read ({reason}): name the folder of a server's kv_disk_path"
        ) from error


def verify_records(path: Path, contents: FolderContents, check: Check) -> Iterator[Fault | None]:
    """Yield None for each sound record of each rank, and a fault for each other one. Raises `OSError`."""
    for kind in RECORD_KINDS:
        for rank, nbytes in enumerate(contents.record_bytes(kind)):
            if nbytes and contents.entries[kind]:
                name = record_file_name(rank, kind)
                yield from _verify_file(path / name, nbytes, contents.entries[kind], check)


def _verify_file(path: Path, nbytes: int, entries: list[Entry], check: Check) -> Iterator[Fault | None]:
    with path.open("rb", buffering=0) as file:
        for entry in sorted(entries):  # by slot
            data = os.pread(file.fileno(), nbytes, entry.slot * nbytes)
            problem = "short" if len(data) < nbytes else check(memoryview(data), entry.digest)
            yield Fault(path.name, entry.slot, problem) if problem else None
