"""A file of cells: reading those that are sound, and appending."""

import os
from collections.abc import Callable, Iterable, Iterator

from numaserve.server.kv_disk.cells import (
    ADDED,
    CELL_BYTES,
    CLEARED,
    DROPPED,
    GROUP,
    GROUP_BYTES,
    HEADER_BYTES,
    USED,
    Cell,
    Header,
    decode_cell,
    decode_header,
    encode_cell,
    encode_header,
)
from numaserve.server.scheduler.disk.changes import RECORD_KINDS, Added, Change, Cleared, Dropped

_CHUNK_CELLS = 256  # a millisecond of work
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
Pause = Callable[[], None]


class IndexFile:
    """An open file of cells. All methods raise `OSError`."""

    def __init__(self, fd: int, header: Header) -> None:
        self.header = header
        self.num_cells = 0
        self._fd = fd
        self._groups = {"": 0}
        self._last_group = 0

    @classmethod
    def create(cls, folder: int, name: str, header: Header) -> "IndexFile":
        """Make a file in an open folder, in place of one that is there. It is not synced."""
        fd = os.open(name, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
        try:
            _write_all(fd, encode_header(header), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, header)

    @classmethod
    def open(cls, folder: int, name: str) -> "IndexFile":
        """Open a file in an open folder. Raises `HeaderError` too."""
        fd = os.open(name, _FLAGS, dir_fd=folder)
        try:
            file = cls(fd, decode_header(os.pread(fd, HEADER_BYTES, 0)))
            # What follows the last whole cell was torn.
            file.num_cells = max(0, os.fstat(fd).st_size - HEADER_BYTES) // CELL_BYTES
        except BaseException:
            os.close(fd)
            raise
        return file

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @property
    def is_removed(self) -> bool:
        """Whether nobody can open the file any more: writes succeed, but are lost."""
        return not os.fstat(self._fd).st_nlink

    def cells(self, pause: Pause) -> Iterator[tuple[int, Cell]]:
        """Yield the sound cells with their numbers. `pause` is called after each millisecond of work."""
        for first in range(0, self.num_cells, _CHUNK_CELLS):
            count = min(_CHUNK_CELLS, self.num_cells - first)
            data = os.pread(self._fd, count * CELL_BYTES, HEADER_BYTES + first * CELL_BYTES)
            for index in range(len(data) // CELL_BYTES):
                begin = index * CELL_BYTES
                cell = decode_cell(data[begin : begin + CELL_BYTES], first + index, self.header.nonce)
                if cell is not None:
                    yield first + index, cell
            pause()

    def use_groups(self, names: dict[int, str], last: int) -> None:
        """Give groups the numbers that the file has for them. The highest one in use is `last`: a number whose name was
        damaged is not used again."""
        self._groups = {name: number for number, name in names.items()}
        self._last_group = last

    def write(self, changes: Iterable[Change]) -> None:
        """Append changes without syncing. After an error, the file is as it was before."""
        cells = [cell for change in changes for cell in self._cells_of(change)]
        numbered = enumerate(cells, self.num_cells)
        data = b"".join(encode_cell(cell, number, self.header.nonce) for number, cell in numbered)
        end = HEADER_BYTES + self.num_cells * CELL_BYTES
        try:
            _write_all(self._fd, data, end)
        except OSError:
            os.ftruncate(self._fd, end)
            raise
        self.num_cells += len(cells)

    def sync(self) -> None:
        """Return when all that was written is on disk."""
        os.fdatasync(self._fd)

    def _cells_of(self, change: Change) -> Iterator[Cell]:
        if isinstance(change, Cleared):
            yield Cell(CLEARED)
            return
        kind = RECORD_KINDS.index(change.kind)
        if isinstance(change, Dropped):
            yield Cell(DROPPED, kind, payload=change.digest)
        elif not isinstance(change, Added):
            yield Cell(USED, kind, at=change.at, payload=change.digest)
        elif len(change.entry.group.encode()) <= GROUP_BYTES:  # names of keys and their groups are shorter
            entry = change.entry
            number = self._groups.get(entry.group)
            if number is None:
                self._last_group += 1
                number = self._groups[entry.group] = self._last_group
                yield Cell(GROUP, group=number, payload=entry.group.encode())
            parent = entry.parent or bytes(len(entry.digest))
            yield Cell(ADDED, kind, entry.slot, entry.depth, entry.used_at, number, entry.digest + parent)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, offset)
        rest, offset = rest[count:], offset + count
