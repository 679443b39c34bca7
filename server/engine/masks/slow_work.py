"""The threads in which work on slow constraints waits for other processes."""

import threading
import time
from collections import deque
from collections.abc import Callable

from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.queue.fair_clock import FairClock

_THREADS = 2


class SlowWork:
    """Runs pieces of work that mostly wait. Clients alternate fairly, by the time that their pieces have taken.

    The threads of other constraints are not used for this work: a few slow constraints would occupy all of them.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._pieces: dict[str, deque[Callable[[], None]]] = {}  # by client; without running pieces
        self._at_work: dict[str, int] = {}
        self._clock = FairClock()
        self._threads = 0
        self._closed = False

    def submit(self, work: Callable[[], None], client: Client) -> None:
        """Schedule `work` to be called in one of the threads; callable from any thread."""
        with self._turn:
            if client.name not in self._pieces:
                self._pieces[client.name] = deque()
                self._clock.enter(client.name, client.weight)
            self._pieces[client.name].append(work)
            if self._threads < _THREADS:
                self._threads += 1
                threading.Thread(target=self._run, name=f"slow-matcher-{self._threads}", daemon=True).start()
            self._turn.notify()

    def close(self) -> None:
        """Start no more work; running pieces are not waited for."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            client, work = piece
            begun = time.monotonic()
            work()
            del piece, work  # the closure may hold much memory, and the next piece may be a long time away
            self._ended(client, time.monotonic() - begun)

    def _next(self) -> tuple[str, Callable[[], None]] | None:
        with self._turn:
            while not self._closed:
                client = min(
                    (name for name, pieces in self._pieces.items() if pieces), key=self._clock.start, default=None
                )
                if client is not None:
                    self._at_work[client] = self._at_work.get(client, 0) + 1
                    return client, self._pieces[client].popleft()
                self._turn.wait()
            return None

    def _ended(self, client: str, seconds: float) -> None:
        with self._turn:
            self._clock.took(client, seconds)
            self._at_work[client] -= 1
            if not self._at_work[client]:
                del self._at_work[client]
                if not self._pieces[client]:
                    del self._pieces[client]
                    self._clock.leave(client)
