"""The folder of the disk tier, as the engine uses it."""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from numaserve.server.kv_disk.cells import Header, HeaderError
from numaserve.server.kv_disk.contents import Stopped, contents_digest
from numaserve.server.kv_disk.erasing import erase_records, keep_records
from numaserve.server.kv_disk.fingerprint import changes_between, fingerprint_of
from numaserve.server.kv_disk.folder import KvDiskFolder
from numaserve.server.kv_disk.index import Index
from numaserve.server.kv_disk.sizes import slots_of
from numaserve.server.kv_disk.writer import PAUSE_S, FolderProblem, IndexWriter
from numaserve.server.scheduler.disk.changes import RECORD_KINDS, Change, Dropped, RecordKind
from numaserve.server.scheduler.disk.directory import DiskDirectory, Entry
from numaserve.server.scheduler.disk.shelves import Directories, RecordSizes
from numaserve.workers.interface.errors import OperatorError

_CLOSE_S = 5.0
_MODEL_CHARACTERS = 200
_GIB = 1 << 30

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreOptions:
    """The settings of the tier, and all that is known of its pages before the workers start."""

    folder: Path
    limit_bytes: int  # of all ranks' files together
    model: str  # for people who inspect the folder
    files: Sequence[Path]  # of the checkpoint, of its vision tower and of the draft model; their content counts
    facts: Mapping[str, object]  # all else that the bits of pages depend on, by name, see `launch_facts`
    groups: Callable[[], Collection[str] | None] = lambda: None  # returns the cache groups that exist; None: all do
    max_age_s: int | None = None  # of a node that is not used


class Store:
    """The files of the disk tier that the front end has: lock, index, digests of the checkpoint.

    A problem after `load` is reported once, in the event loop, and ends all writes: `on_problem` may be set before.
    """

    def __init__(self, options: StoreOptions) -> None:
        """Open and lock the folder, which is quick. Raises `OperatorError`."""
        self._options = options
        self._folder = KvDiskFolder(options.folder)
        try:
            self._folder.warn_of_file_system()
            self._limit = self._folder.usable_bytes(options.limit_bytes)
        except BaseException:
            self._folder.close()
            raise
        self.on_problem: Callable[[FolderProblem, str], None] = lambda problem, message: None
        self._stopping = threading.Event()
        self._writer: IndexWriter | None = None
        self._loading: threading.Thread | None = None
        self._sizes = RecordSizes((), ())

    @property
    def folder(self) -> Path:
        """The path of the folder, without links."""
        return self._folder.path

    @property
    def limit_bytes(self) -> int:
        """The most bytes that the files may have together: the option, or what the disk has."""
        return self._limit

    @property
    def max_age_s(self) -> int | None:
        """The seconds after which nodes that were not used are dropped; None: they are kept."""
        return self._options.max_age_s

    async def load(self, sizes: RecordSizes) -> Directories:
        """Return the nodes that are on disk, when everything else in the files is erased.

        It takes as long as reading the checkpoint once, unless its content is known. Raises `OSError`.
        """
        loop = asyncio.get_running_loop()
        future = concurrent.futures.Future[Directories]()
        future.set_running_or_notify_cancel()  # a caller who is cancelled does not cancel the thread

        def work() -> None:
            try:
                future.set_result(self._load(sizes, loop))
            except OSError as error:
                future.set_exception(error)
            except (OperatorError, Stopped) as error:
                future.set_exception(OSError(str(error)))
            except Exception as error:
                _log.exception("the index of the disk tier cannot be read")
                future.set_exception(OSError(f"{type(error).__name__}; see the server's log"))

        # A daemon: a disk that hangs cannot keep the server from ending.
        self._loading = threading.Thread(target=work, name="kv-disk-load", daemon=True)
        self._loading.start()
        directories = await asyncio.wrap_future(future)
        self._sizes = sizes
        return directories

    def append(self, changes: Sequence[Change]) -> None:
        """Keep changes of the directories, without waiting for the disk. Ignored before `load` and after a problem."""
        if self._writer is not None:
            self._writer.append(changes)

    def erase(self, slots: Mapping[RecordKind, Sequence[int]], done: Callable[[], None]) -> None:
        """Erase records in the thread of the index, after the changes that were appended; then call `done` in the event
        loop. After a problem, or if the server is killed before, the next start erases them."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            for file in self._folder.record_files():
                with self._folder.opened(file.name) as fd:
                    erase_records(fd, self._sizes.of(file.rank, file.kind), slots.get(file.kind, ()))
            if not loop.is_closed():
                loop.call_soon_threadsafe(done)

        if self._writer is not None:
            self._writer.run_after(work)

    @staticmethod
    def now() -> int:
        """Return the time of changes that are made now, in unix seconds."""
        return round(time.time())

    def close(self) -> None:
        """Keep the changes that wait, if the disk takes them in a few seconds, and let another server use the folder.

        Blocks: call it at the end of the server.
        """
        self._stopping.set()
        if self._writer is not None and not self._writer.close(_CLOSE_S):
            _log.warning("disk tier: the index was not written within %.0f s", _CLOSE_S)
            return
        if self._loading is not None:
            self._loading.join(_CLOSE_S)  # its last steps follow the result
        if self._loading is None or not self._loading.is_alive():
            self._folder.close()
        # Otherwise a thread uses the folder until the process ends, which gives the lock back.

    def _load(self, sizes: RecordSizes, loop: asyncio.AbstractEventLoop) -> Directories:
        options = self._options
        contents = contents_digest(options.files, self._folder.fd, is_stopped=self._stopping.is_set)
        facts = fingerprint_of(contents, options.facts, sizes.pages, sizes.anchors)
        header = Header(facts, options.model[:_MODEL_CHARACTERS], list(sizes.pages), list(sizes.anchors), b"")
        slots = slots_of(self._limit, sizes.pages, sizes.anchors)
        index, entries = self._restore(header, slots)
        try:
            directories = {kind: DiskDirectory(slots[kind], entries[kind]) for kind in RECORD_KINDS}
            dropped = [
                Dropped(kind, digest) for kind in RECORD_KINDS for digest in self._drop_unwanted(directories[kind])
            ]
            self._erase(sizes, directories)
            if dropped:
                index.append(dropped)
                index.compact(_pause)
        except BaseException:
            index.close()
            raise
        self._log_nodes(sizes, directories, len(dropped))

        def report(problem: FolderProblem, message: str) -> None:
            loop.call_soon_threadsafe(self.on_problem, problem, message)

        self._writer = IndexWriter(index, report)
        return Directories(directories["pages"], directories["anchors"])

    def _restore(self, header: Header, slots: Mapping[RecordKind, int]) -> tuple[Index, dict[RecordKind, list[Entry]]]:
        """Return the index and its nodes; a new index without nodes where the old one cannot be used."""
        try:
            index = Index.open(self._folder.fd, slots)
        except FileNotFoundError:
            reason = "the folder has no index"
        except HeaderError as error:
            reason = str(error)
        else:
            changed = changes_between(index.header.facts, header.facts)
            if not changed:
                entries, num_damaged = index.restore(_pause)
                if num_damaged:
                    _log.warning("disk tier: skipped %d damaged parts of the index", num_damaged)
                now = self.now()
                # The clock may have been wrong.
                sound = {
                    kind: [entry._replace(used_at=min(entry.used_at, now)) for entry in found]
                    for kind, found in entries.items()
                }
                return index, sound
            index.close()
            reason = f"what it was computed with has changed ({', '.join(changed)})"
        _log.info("disk tier: begins without cached prefixes: %s", reason)
        return Index.create(self._folder.fd, header, slots), {kind: [] for kind in RECORD_KINDS}

    def _drop_unwanted(self, directory: DiskDirectory) -> list[bytes]:
        """Drop nodes of removed keys, and those that are too old. Returns their digests."""
        groups, max_age_s = self._options.groups(), self._options.max_age_s
        dropped = [] if groups is None else directory.drop_groups(groups)
        dropped += [] if max_age_s is None else directory.expire(self.now() - max_age_s)
        for slot, _ in dropped:
            directory.give_back(slot)
        return [digest for _, digest in dropped]

    def _erase(self, sizes: RecordSizes, directories: Mapping[RecordKind, DiskDirectory]) -> None:
        """Erase what no node owns: it may be a prompt of a removed key, or of another model."""
        for file in self._folder.record_files():
            nbytes, directory = sizes.of(file.rank, file.kind), directories[file.kind]
            if not nbytes:
                self._folder.remove(file.name)
                continue
            with self._folder.opened(file.name) as fd:
                keep_records(fd, nbytes, directory.num_slots, [entry.slot for entry in directory.entries()])

    def _log_nodes(self, sizes: RecordSizes, directories: Mapping[RecordKind, DiskDirectory], num_dropped: int) -> None:
        pages = directories["pages"]
        _log.info(
            "disk tier: %d of %d pages are on disk (%.2f GiB of %.2f GiB), %d records were erased",
            *(len(pages), pages.num_slots, len(pages) * sum(sizes.pages) / _GIB, self._limit / _GIB, num_dropped),
        )


def _pause() -> None:
    time.sleep(PAUSE_S)
