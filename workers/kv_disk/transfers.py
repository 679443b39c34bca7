"""Requests to move records, which several threads work on."""

import errno
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from numaserve.kernels import gather, scatter
from numaserve.workers.interface.protocol import DiskProblem, DiskRecord
from numaserve.workers.kv_disk.files import Staging
from numaserve.workers.kv_disk.memory import MemoryRange, bytes_of
from numaserve.workers.kv_disk.places import Run
from numaserve.workers.kv_disk.records import payload_of, problem_of, seal
from numaserve.workers.kv_disk.threads import Task

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_log = logging.getLogger(__name__)


class Moved(NamedTuple):
    """The result of a request; see `RecordsMoved`."""

    done: int
    problem: DiskProblem
    message: str
    nbytes: int
    nanoseconds: int


class Transfer(ABC):
    """A request to move records. It is answered once: when no thread works on it any more, or when it is cancelled."""

    def __init__(
        self,
        runs: Sequence[Run],
        ranges: Callable[[DiskRecord], list[MemoryRange]],
        answer: Callable[[Moved], None],
    ) -> None:
        """Move the records of `runs` from or to the memory `ranges`. `answer` gets the result, from any thread."""
        self._ranges, self._answer = ranges, answer
        self._sizes = [run.of.record_bytes for run in runs for _ in run.records]
        self._files = {run.of.file for run in runs}
        self._waiting = list(runs[::-1])
        self._lock = threading.Condition()
        self._moved = [False] * len(self._sizes)
        self._end = len(self._sizes)  # the first record with a problem, or the number of records
        self._problem: DiskProblem = ""
        self._message = ""
        self._working = self._copying = 0  # threads
        self._begin_ns = 0
        self._closed = False

    def take(self) -> Task | None:
        """Return the task of the next run; see `Source`."""
        with self._lock:
            if self._closed or not self._waiting or self._waiting[-1].first >= self._end:
                return None
            self._working += 1
            self._begin_ns = self._begin_ns or time.monotonic_ns()
            run = self._waiting.pop()
        return lambda staging: self._work(run, staging)

    def close(self, problem: DiskProblem = "") -> None:
        """Answer now, unless this was done before; with a `problem` if records are left that have none of their own. No
        memory of a cache changes from then on."""
        with self._lock:
            if not self._closed:
                self._closed = True
                while self._copying:  # no copy waits for a disk
                    self._lock.wait()
                self._conclude(problem)

    def _work(self, run: Run, staging: Staging) -> None:
        try:
            self._move(run, staging)
        except OSError as error:
            self._fail(run.first, *_told(error))
        except Exception as error:
            _log.exception("records of the disk tier cannot be moved")
            self._fail(run.first, "io", f"{type(error).__name__}; see the server's log")
        with self._lock:
            self._working -= 1
            is_last = not self._working and (not self._waiting or self._waiting[-1].first >= self._end)
        if is_last:
            self._finish()

    def _copy(self, copy: Callable[[], None]) -> bool:
        """Copy from or to the caches; return False, with nothing done, once the request has been answered."""
        with self._lock:
            if self._closed:
                return False
            self._copying += 1
        try:
            copy()  # outside the lock: the first copy to memory waits until the system has cleared it
        finally:
            with self._lock:
                self._copying -= 1
                self._lock.notify()
        return True

    @abstractmethod
    def _move(self, run: Run, staging: Staging) -> None:
        """Move the records of a run. Raises `OSError`."""

    @abstractmethod
    def _finish(self) -> None:
        """Answer, after the last run. Raises nothing."""

    def _fail(self, record: int, problem: DiskProblem, message: str = "") -> None:
        """Note the problem of a record, after which no record counts."""
        with self._lock:
            if record < self._end:
                self._end, self._problem, self._message = record, problem, message

    def _conclude(self, problem: DiskProblem) -> None:
        """Answer; the caller has the lock."""
        self._waiting.clear()
        done = (*self._moved, False).index(False)
        message = ""
        if done == self._end:
            problem, message = self._problem, self._message
        nanoseconds = time.monotonic_ns() - self._begin_ns if self._begin_ns else 0
        nbytes = sum(self._sizes[:done])
        self._answer(Moved(done, problem, message, nbytes, nanoseconds))


class Reading(Transfer):
    """A request to read records."""

    def _move(self, run: Run, staging: Staging) -> None:
        staged = staging.of(run.nbytes)
        count = run.of.file.read(staged, run.offset)
        sound: list[tuple[memoryview, list[MemoryRange]]] = []
        problem: DiskProblem = ""
        for record, part in zip(run.records, run.parts(staged), strict=True):
            ranges = self._ranges(record)
            length = bytes_of(ranges)
            is_short = count < run.of.record_bytes * (len(sound) + 1)
            problem = "short" if is_short else problem_of(part, record.digest, length)
            if problem:
                break
            sound.append((payload_of(part, length), ranges))
        if not self._copy(lambda: _scatter_all(sound)):
            return
        self._moved[run.first : run.first + len(sound)] = [True] * len(sound)
        if problem:
            self._fail(run.first + len(sound), problem)

    def _finish(self) -> None:
        self.close()


class Writing(Transfer):
    """A request to write records."""

    def __init__(
        self,
        runs: Sequence[Run],
        ranges: Callable[[DiskRecord], list[MemoryRange]],
        answer: Callable[[Moved], None],
        rest: Callable[[], None],
    ) -> None:
        """See `Transfer`. The threads `rest` after each run, since no sequence waits for them."""
        super().__init__(runs, ranges, answer)
        self._rest = rest

    def _move(self, run: Run, staging: Staging) -> None:
        staged = staging.of(run.nbytes)
        # A page that was given to others must not be written under this digest, even if the record does not count.
        if not self._copy(lambda: self._gather_all(run, staged)):
            return
        written = run.of.file.write(staged, run.offset) // run.of.record_bytes
        if written < len(run.records):
            self._fail(run.first + written, "short")
        self._rest()

    def _gather_all(self, run: Run, staged: memoryview) -> None:
        for record, part in zip(run.records, run.parts(staged), strict=True):
            ranges = self._ranges(record)
            length = bytes_of(ranges)
            gather(ranges, payload_of(part, length))
            seal(part, record.digest, length)

    def _finish(self) -> None:
        try:
            for file in self._files:
                file.sync()
        except OSError as error:
            # No later sync would report it again: the system may have dropped what it could not write.
            self._fail(0, *_told(error))
        with self._lock:
            self._moved[: self._end] = [True] * self._end
        self.close()


def _scatter_all(sound: Sequence[tuple[memoryview, list[MemoryRange]]]) -> None:
    for payload, ranges in sound:
        scatter(payload, ranges)


def _told(error: OSError) -> tuple[DiskProblem, str]:
    return "full" if error.errno in _FULL else "io", error.strerror or str(error)
