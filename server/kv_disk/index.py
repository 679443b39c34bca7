"""The index of the disk tier: an append-only file of changes, from which the directories are restored.

It holds digests of prefixes, never their tokens: prompts lie in one place, the files of the ranks.
"""

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from numaserve.server.kv_disk.cells import Header
from numaserve.server.kv_disk.index_file import IndexFile, Pause
from numaserve.server.kv_disk.replay import Replay
from numaserve.server.scheduler.disk.changes import RECORD_KINDS, Added, Change, Cleared, Dropped, RecordKind
from numaserve.server.scheduler.disk.directory import Entry

INDEX_NAME = "index"
_NEW_NAME = "index.new"
_NONCE_BYTES = 16
_BATCH = 256
_SPARE_CELLS = 4096  # dead ones that are always tolerated


def _no_pause() -> None:
    """Go on at once."""


class Index:
    """The index in an open folder. One thread at a time uses it. All methods raise `OSError`.

    `pause` is called after each millisecond of work: the event loop needs the interpreter too.
    """

    def __init__(self, folder: int, file: IndexFile, num_slots: Mapping[RecordKind, int]) -> None:
        """Use `create` or `open`."""
        self._folder, self._file, self._num_slots = folder, file, num_slots
        self._num_live = 0

    @classmethod
    def create(cls, folder: int, header: Header, num_slots: Mapping[RecordKind, int]) -> "Index":
        """Make an empty index in place of one that is there. Nodes in slots beyond `num_slots` will not be restored."""
        file = IndexFile.create(folder, _NEW_NAME, _renewed(header))
        _publish(folder, file)
        return cls(folder, file, num_slots)

    @classmethod
    def open(cls, folder: int, num_slots: Mapping[RecordKind, int]) -> "Index":
        """Open the index of an earlier server. Raises `HeaderError` for a damaged one."""
        return cls(folder, IndexFile.open(folder, INDEX_NAME), num_slots)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def header(self) -> Header:
        """The header of the file."""
        return self._file.header

    @property
    def is_removed(self) -> bool:
        """Whether the file was removed: writes succeed, but no later start will find them."""
        return self._file.is_removed

    @property
    def is_mostly_dead(self) -> bool:
        """Whether more than half of the file is of no use any more."""
        return self._file.num_cells > 2 * self._num_live + _SPARE_CELLS

    def restore(self, pause: Pause = _no_pause) -> tuple[dict[RecordKind, list[Entry]], int]:
        """Return the live nodes by kind of record, and the number of damaged cells."""
        replay, num_sound = self._replay(pause)
        entries: dict[RecordKind, list[Entry]] = {kind: [] for kind in RECORD_KINDS}
        for kind, entry in self._live(replay, pause):
            entries[kind].append(entry)
        self._num_live = replay.num_live
        return entries, self._file.num_cells - num_sound

    def append(self, changes: Sequence[Change]) -> None:
        """Write changes, and return when they are on disk."""
        self._file.write(changes)
        self._file.sync()
        for change in changes:
            if isinstance(change, Cleared):
                self._num_live = 0
            else:
                self._num_live += isinstance(change, Added) - isinstance(change, Dropped)
        # A node that is added in place of another one is counted twice.
        self._num_live = min(self._num_live, sum(self._num_slots.values()))

    def compact(self, pause: Pause = _no_pause) -> None:
        """Replace the file by one of the live nodes alone."""
        replay, _ = self._replay(pause)
        file = IndexFile.create(self._folder, _NEW_NAME, _renewed(self.header))
        try:
            live = (Added(kind, entry) for kind, entry in self._live(replay, pause))
            while batch := list(itertools.islice(live, _BATCH)):
                file.write(batch)
            _publish(self._folder, file)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                os.unlink(_NEW_NAME, dir_fd=self._folder)
            raise
        self._file.close()
        self._file, self._num_live = file, replay.num_live

    def _replay(self, pause: Pause) -> tuple[Replay, int]:
        """Return what the sound cells leave, and their number."""
        replay, count = Replay(self._num_slots), 0
        for number, cell in self._file.cells(pause):
            replay.take(number, cell)
            count += 1
        self._file.use_groups(replay.groups, replay.last_group)
        return replay, count

    def _live(self, replay: Replay, pause: Pause) -> Iterator[tuple[RecordKind, Entry]]:
        for number, cell in self._file.cells(pause):
            if replay.is_live(number, cell):
                group, used_at = replay.groups[cell.group], replay.used_at(cell)
                yield (
                    RECORD_KINDS[cell.kind],
                    Entry(cell.slot, cell.digest, cell.parent, cell.depth, group, used_at),
                )


def _renewed(header: Header) -> Header:
    return msgspec.structs.replace(header, nonce=secrets.token_bytes(_NONCE_BYTES))


def _publish(folder: int, file: IndexFile) -> None:
    """Give the new file the name of the index, and return when both are on disk."""
    file.sync()
    os.rename(_NEW_NAME, INDEX_NAME, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)
