"""Requests to move records, which several threads work on."""

import errno
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from numaserve.kernels import gather, scatter
from numaserve.workers.interface.protocol import DiskProblem, RecordsMoved
from numaserve.workers.kv_disk.files import Staging
from numaserve.workers.kv_disk.places import Place, Run, runs_of
from numaserve.workers.kv_disk.records import payload_of, problem_of, seal
from numaserve.workers.kv_disk.threads import Task

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_log = logging.getLogger(__name__)


class Transfer(ABC):
    """A request to move records. It is answered once: when no thread works on it any more, or when it is cancelled."""

    def __init__(self, rank: int, request_id: int, places: Sequence[Place], answer: Callable[[RecordsMoved], None]):
        """Give `answer` the result, from any thread."""
        self._rank, self.request_id, self._answer = rank, request_id, answer
        self._sizes = [place.of.record_bytes for place in places]
        self._files = {place.of.file for place in places}
        self._waiting = runs_of(places)[::-1]
        self._lock = threading.Condition()
        self._moved = [False] * len(places)
        self._end = len(places)  # the first record with a problem, or the number of records
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
        self._answer(RecordsMoved(self._rank, self.request_id, done, problem, message, nbytes, nanoseconds))


class Reading(Transfer):
    """A request to read records."""

    def _move(self, run: Run, staging: Staging) -> None:
        staged = staging.of(run.nbytes)
        count = run.file.read(staged, run.offset)
        for number, (place, record) in enumerate(zip(run.places, run.records(staged), strict=True), run.first):
            is_short = count < len(record) * (number - run.first + 1)
            problem = "short" if is_short else problem_of(record, place.record.digest, place.payload_bytes)
            if problem:
                self._fail(number, problem)
                return
            if not self._copy(number, place, record):
                return

    def _copy(self, number: int, place: Place, record: memoryview) -> bool:
        """Copy a record to the caches; return False once the request has been answered."""
        with self._lock:
            if self._closed:
                return False
            self._copying += 1
        # Outside the lock: the first copy to memory waits until the system has cleared it.
        scatter(payload_of(record, place.payload_bytes), place.ranges)
        with self._lock:
            self._moved[number] = True
            self._copying -= 1
            self._lock.notify()
        return True

    def _finish(self) -> None:
        self.close()


class Writing(Transfer):
    """A request to write records."""

    def _move(self, run: Run, staging: Staging) -> None:
        staged = staging.of(run.nbytes)
        for place, record in zip(run.places, run.records(staged), strict=True):
            gather(place.ranges, payload_of(record, place.payload_bytes))
            seal(record, place.record.digest, place.payload_bytes)
        count = run.file.write(staged, run.offset)
        for number, place in enumerate(run.places, run.first):
            if count < place.of.record_bytes * (number - run.first + 1):
                self._fail(number, "short")
                return
            self._moved[number] = True

    def _finish(self) -> None:
        try:
            for file in self._files:
                file.sync()
        except OSError as error:
            # No later sync would report it again: the system may have dropped what it could not write.
            self._moved = [False] * len(self._moved)
            self._fail(0, *_told(error))
        self.close()


def _told(error: OSError) -> tuple[DiskProblem, str]:
    return "full" if error.errno in _FULL else "io", error.strerror or str(error)
