"""Writes a rank's weights to the cache while the rank serves."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence

from numaserve.workers.weights.cache.errors import CacheError

_log = logging.getLogger(__name__)

_BUSY_PAUSE_S = 0.05  # after each unit of 4 MiB, which takes a millisecond or two, while steps are run
_NICE = 10  # gives a tenth of the time of a contended core
_STOP_S = 5.0


def leave_time_to_steps(cpus: Sequence[int]) -> None:
    """Let the calling thread run on any of a rank's `cpus`, with a higher nice value than the steps. Negative numbers
    of threads that are not pinned are left out."""
    pinned = [cpu for cpu in cpus if cpu >= 0]
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # in Linux of this thread alone
        if pinned:
            os.sched_setaffinity(0, pinned)


class _Stopped(Exception):
    """Raised in the thread when the worker ends."""


class BackgroundWriter:
    """A thread that calls `write(between)` once.

    The thread uses the time that steps leave. It has a higher nice value than they do, may run on any of the rank's
    `cpus`, and rests between units while `steps()`, a count, grows. The idle scheduling policy is not used: a busy
    machine could then stop the thread for long while it holds the interpreter's lock, which each step needs.
    """

    def __init__(
        self, write: Callable[[Callable[[], None]], object], steps: Callable[[], int], cpus: Sequence[int]
    ) -> None:
        self._write = write
        self._steps = steps
        self._cpus = cpus
        self._seen = steps()
        self._stop = threading.Event()
        # A daemon: a write that hangs in the file system cannot keep the worker from ending.
        self._thread = threading.Thread(target=self._run, name="weights-cache", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the writer, and remove the file if it is incomplete."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def wait(self) -> None:
        """Wait until the writer is done."""
        self._thread.join()

    def _run(self) -> None:
        leave_time_to_steps(self._cpus)
        try:
            self._write(self._between)
        except _Stopped:
            pass
        except CacheError as error:
            _log.warning("the packed weights were not cached: %s", error)

    def _between(self) -> None:
        steps = self._steps()
        if self._stop.wait(_BUSY_PAUSE_S if steps != self._seen else 0):
            raise _Stopped
        self._seen = steps
