"""Threads that wait for the disk alongside the steps."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from numaserve.workers.kv_disk.files import Staging
from numaserve.workers.weights.cache.background import leave_time_to_steps

_JOIN_S = 0.5  # for all threads of a worker that ends
_REST_S = 0.008  # a mebibyte takes a quarter of a millisecond of a core, which a step of all cores has to wait for

Task = Callable[[Staging], None]  # must raise nothing


class Rests:
    """The rests of a thread that leaves most of its core to the steps, while there are steps."""

    def __init__(self, steps: Callable[[], int]) -> None:
        """Use the count `steps`, which grows with each step."""
        self._steps = steps
        self._seen = steps()

    def __call__(self) -> None:
        """Wait if steps have run since the last call."""
        steps = self._steps()
        if steps != self._seen:
            self._seen = steps
            time.sleep(_REST_S)


class Source(Protocol):
    """Tasks that several threads work on."""

    def take(self) -> Task | None:
        """Return the next task; None: there are no more."""


class IoThreads:
    """Threads that work on sources, in order, with all threads on the first one that has tasks left.

    The threads are daemons: a disk that hangs cannot keep the worker from ending.
    """

    def __init__(self, name: str, count: int, cpus: Sequence[int]) -> None:
        """Start `count` threads that may run on any of the rank's `cpus`."""
        self._cpus = cpus
        self._sources: deque[Source] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def add(self, source: Source) -> None:
        """Work on a source, after all that were added before."""
        with self._changed:
            self._sources.append(source)
            self._changed.notify_all()

    def close(self) -> None:
        """Let the threads end after their tasks, and wait for those whose disk does not hang: a thread that lives on
        holds native objects when the interpreter ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        leave_time_to_steps(self._cpus)
        staging = Staging()
        while (task := self._next()) is not None:
            task(staging)

    def _next(self) -> Task | None:
        with self._changed:
            while not self._closed:
                while self._sources:
                    task = self._sources[0].take()
                    if task is not None:
                        return task
                    self._sources.popleft()
                self._changed.wait()
        return None
