"""The thread that writes the index, so that no disk blocks the event loop."""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from numaserve.server.kv_disk.index import Index
from numaserve.server.scheduler.disk.changes import Change

FolderProblem = Literal["full", "io", "gone", "slow"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BETWEEN_SYNCS_S = 0.2  # changes in between share one sync
_MOST_WAITING = 1 << 18  # changes; some 60 MB
PAUSE_S = 0.001  # after each millisecond of work that holds the interpreter's lock

_log = logging.getLogger(__name__)


class _Closing(Exception):
    """Raised in the thread when the server ends."""


class IndexWriter:
    """Appends changes in order, and compacts the index. It stops at the first error, which it reports once.

    The thread is a daemon: a disk that hangs cannot keep the server from ending.
    """

    def __init__(self, index: Index, on_problem: Callable[[FolderProblem, str], None]) -> None:
        """Use the index, and close it in the end. `on_problem` is called from any thread, with a message."""
        self._index, self._on_problem = index, on_problem
        self._changes: list[Change] = []
        self._works: list[Callable[[], None]] = []
        self._condition = threading.Condition()
        self._closing = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="kv-disk-index", daemon=True)
        self._thread.start()

    def append(self, changes: Sequence[Change]) -> None:
        """Have changes written, without waiting. Ignored after a problem."""
        with self._condition:
            if self._stopped or self._closing:
                return
            self._changes.extend(changes)
            too_many = len(self._changes) > _MOST_WAITING
            self._stopped = too_many
            self._condition.notify()
        if too_many:
            self._on_problem("slow", f"{_MOST_WAITING} changes of the index wait for the disk")

    def run_after(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread, after the changes that wait are on disk. It may raise `OSError`. Ignored after a
        problem."""
        with self._condition:
            if not (self._stopped or self._closing):
                self._works.append(work)
                self._condition.notify()

    def close(self, timeout: float) -> bool:
        """Write what waits, and end. Returns false if that takes more than `timeout` seconds."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._is_over():
                changes, works = self._next()
                self._index.append(changes)
                for work in works:
                    work()
                if self._index.is_removed:
                    self._stop("gone", "the index was removed")
                elif self._index.is_mostly_dead:
                    with contextlib.suppress(_Closing):
                        self._index.compact(self._pause)
        except OSError as error:
            self._stop(problem_of(error), error.strerror or str(error))
        except Exception as error:
            _log.exception("the index of the disk tier cannot be written")
            self._stop("io", f"{type(error).__name__}; see the server's log")
        finally:
            self._index.close()

    def _pause(self) -> None:
        if self._closing:
            raise _Closing
        time.sleep(PAUSE_S)

    def _is_over(self) -> bool:
        """Wait for something to do, at the earliest some time after what was done before; true: for the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._stopped, _BETWEEN_SYNCS_S)
            self._condition.wait_for(lambda: self._changes or self._works or self._closing or self._stopped)
            return self._stopped or not (self._changes or self._works)

    def _next(self) -> tuple[list[Change], list[Callable[[], None]]]:
        """Return the changes that wait, and the works after them."""
        with self._condition:
            changes, self._changes = self._changes, []
            works, self._works = self._works, []
            return changes, works

    def _stop(self, problem: FolderProblem, message: str) -> None:
        with self._condition:
            reported, self._stopped = self._stopped, True
            self._changes.clear()
            self._works.clear()
        if not reported:
            self._on_problem(problem, message)


def problem_of(error: OSError) -> FolderProblem:
    """Return the kind of an error."""
    if error.errno in _FULL:
        return "full"
    return "gone" if error.errno in (errno.ENOENT, errno.ESTALE, errno.ENODEV) else "io"
