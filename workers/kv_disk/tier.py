"""The disk tier of a rank: its messages, its files and its threads."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from numaserve.workers.interface.protocol import (
    CancelMove,
    DiskReady,
    FromDisk,
    ReadRecords,
    RecordsMoved,
    ToDisk,
    WriteRecords,
)
from numaserve.workers.kv_disk.files import DirectFile, DiskError, File
from numaserve.workers.kv_disk.memory import CacheMemory, RecordError
from numaserve.workers.kv_disk.places import RecordFiles
from numaserve.workers.kv_disk.probe import read_rate
from numaserve.workers.kv_disk.threads import IoThreads, Rests
from numaserve.workers.kv_disk.transfers import Moved, Reading, Transfer, Writing
from numaserve.workers.weights.cache.background import leave_time_to_steps

READERS = 4  # a disk reaches a third of its bandwidth with one read at a time, and nearly all with four
WRITERS = 1  # of its own: a sync that takes long delays no read

_log = logging.getLogger(__name__)


class DiskTier:
    """Moves records between a rank's files and the memory of its caches.

    `begin` is called by the thread that runs steps, between two plans: all plans that were sent before have run.
    """

    def __init__(
        self,
        rank: int,
        folder: Path,
        memory: CacheMemory,
        *,
        cpus: Sequence[int],
        steps: Callable[[], int],
        wake: Callable[[], None],
        open_file: Callable[[Path], File] = DirectFile,
    ) -> None:
        """Open the files in `folder`, in a thread that may run on any of `cpus`. `steps` counts steps, during which
        writes take little time of a core. `wake` is called from some thread when an answer is there. Tests open files
        that fail by `open_file`."""
        self._rank, self._folder, self._memory, self._cpus = rank, folder, memory, cpus
        self._wake, self._open_file = wake, open_file
        self._waking, self._closed = threading.Lock(), False
        self._rests = Rests(steps)
        self._files: RecordFiles | None = None
        self._transfers: dict[int, Transfer] = {}
        self._answers: deque[FromDisk] = deque()
        self._readers = IoThreads("kv-disk-read", READERS, cpus)
        self._writers = IoThreads("kv-disk-write", WRITERS, cpus)
        # A daemon, as all threads here: a disk that hangs cannot keep the worker from ending.
        threading.Thread(target=self._open, name="kv-disk-open", daemon=True).start()

    def begin(self, message: ToDisk) -> None:
        """Begin to move records, or cancel that."""
        if isinstance(message, CancelMove):
            transfer = self._transfers.get(message.request_id)
            if transfer is not None:
                transfer.close("cancelled")
            return
        try:
            self._start(message)
        except RecordError as error:
            self._answer(RecordsMoved(self._rank, message.request_id, 0, "io", str(error)))

    def answers(self) -> list[FromDisk]:
        """Return the answers that are there."""
        answers: list[FromDisk] = []
        while self._answers:
            answer = self._answers.popleft()
            if isinstance(answer, RecordsMoved):
                self._transfers.pop(answer.request_id, None)
            answers.append(answer)
        return answers

    def close(self) -> None:
        """Begin to move no more records, and wake no one from now on."""
        with self._waking:
            self._closed = True
        self._readers.close()
        self._writers.close()

    def _start(self, message: WriteRecords | ReadRecords) -> None:
        if self._files is None:
            raise RecordError("the files of the disk tier are not open")
        runs, ranges, request_id = self._files.runs(message.records), self._memory.ranges, message.request_id
        answer = partial(self._moved, request_id)
        if not runs:
            self._answer(RecordsMoved(self._rank, request_id, 0))
        elif isinstance(message, ReadRecords):
            self._add(request_id, Reading(runs, ranges, answer), self._readers)
        else:
            self._add(request_id, Writing(runs, ranges, answer, self._rests), self._writers)

    def _add(self, request_id: int, transfer: Transfer, threads: IoThreads) -> None:
        self._transfers[request_id] = transfer
        threads.add(transfer)

    def _moved(self, request_id: int, moved: Moved) -> None:
        self._answer(RecordsMoved(self._rank, request_id, *moved))

    def _answer(self, answer: FromDisk) -> None:
        self._answers.append(answer)
        with self._waking:
            if not self._closed:
                self._wake()

    def _open(self) -> None:
        leave_time_to_steps(self._cpus)
        page_bytes = anchor_bytes = 0
        rate, problem = 0.0, ""
        try:
            files = self._opened()
            rate = read_rate(self._path("probe"), self._open_file, self._readers)
            page_bytes = files.pages.record_bytes
            anchor_bytes = 0 if files.anchors is None else files.anchors.record_bytes
            self._files = files
        except (OSError, DiskError) as error:
            problem = str(error)
        except Exception as error:
            _log.exception("the files of the disk tier cannot be opened")
            problem = f"{type(error).__name__}; see the server's log"
        self._answer(DiskReady(self._rank, page_bytes, anchor_bytes, rate, problem))

    def _opened(self) -> RecordFiles:
        if self._memory.lacks_snapshots:
            raise DiskError("the model has recurrent states, but the rank stores no snapshots of them")
        pages = self._open_file(self._path("pages"))
        anchors = self._open_file(self._path("anchors")) if self._memory.has_anchors else None
        return RecordFiles.of(self._memory, pages, anchors)

    def _path(self, kind: str) -> Path:
        return self._folder / f"rank-{self._rank}.{kind}"
