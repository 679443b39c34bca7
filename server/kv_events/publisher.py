"""The sockets of KV events, and the thread that serves them."""

import logging
import os
import socket
import threading
import time
from collections import deque
from contextlib import ExitStack

from numaserve.server.kv_events.exchange import Exchange
from numaserve.server.kv_events.history import History
from numaserve.server.kv_events.listening import address_of, end_listening, listen
from numaserve.server.kv_events.peer import Asker, Subscriber, Summaries
from numaserve.server.kv_events.wire import encode
from numaserve.server.scheduler.cache.kv_events import KVEvent, PagesCleared

logger = logging.getLogger(__name__)

KEPT_BATCHES = 10_000  # same as vLLM


class Publisher:
    """Publishes batches of events at `endpoint`, a PUB socket to ZeroMQ's peers; repeats them at `replay`, a ROUTER.

    A message has three frames: `topic`, the number of the batch in 8 bytes, big-endian, and the batch. The first batch,
    number 0, reports that nothing is cached. A subscriber that missed batches sends the first missing number to
    `replay`, in 8 bytes, and gets the same messages. If an empty frame precedes the number, one precedes each answer.
    The last answer has the number -1 and no batch. A subscriber that does not read loses batches beyond the last
    `kept`, and can request them again.

    The work runs in a thread of its own, apart from the event loop: a subscriber that requests everything delays no
    stream. Raises `OSError` for an endpoint that is not available.
    """

    def __init__(
        self, endpoint: str, replay: str | None, topic: str, page_size: int, *, kept: int = KEPT_BATCHES
    ) -> None:
        self._page_size = page_size
        self._history = history = History(page_size, kept)
        self._waiting: deque[list[KVEvent]] = deque()
        self._closing = False
        with ExitStack() as stack:
            self._listeners = []
            for address in (endpoint, replay):
                if address is not None:
                    self._listeners.append(listen(address))
                    stack.callback(end_listening, self._listeners[-1])
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(os.close, self._wake)
            self._given_back = stack.pop_all()
        summaries, frame = Summaries(), topic.encode()

        def subscriber(connection: socket.socket, seconds: float) -> Subscriber:
            return Subscriber(connection, seconds, history, frame)

        def asker(connection: socket.socket, seconds: float) -> Asker:
            return Asker(connection, seconds, history, frame, summaries)

        self._exchange = Exchange(self._wake, summaries)
        for listener, make in zip(self._listeners, (subscriber, asker), strict=False):
            self._exchange.open(listener, make)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self.publish([PagesCleared()])
        self._thread.start()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The addresses that were bound, with their actual ports."""
        return tuple(map(address_of, self._listeners))

    def publish(self, events: list[KVEvent]) -> None:
        """Send a batch soon. Does not wait; may be called from any thread."""
        if self._thread.ident is None or self._thread.is_alive():
            self._waiting.append(events)
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Send the waiting batches, and release the addresses."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._exchange.close()
        self._given_back.close()

    def _run(self) -> None:
        try:
            while not (self._closing and not self._waiting):
                if self._exchange.turn():
                    os.eventfd_read(self._wake)
                while self._waiting:
                    self._history.add(encode(self._waiting.popleft(), self._page_size, time.time()))
                self._exchange.send()
        except Exception:
            logger.exception("the publisher of KV events failed; no more KV events are published")
