"""The sockets of KV events, and the thread that serves them."""

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path

import zmq
from numaserve.server.kv_events.history import History
from numaserve.server.kv_events.wire import encode
from numaserve.server.scheduler.kv_events import KVEvent, PagesCleared

logger = logging.getLogger(__name__)

KEPT_BATCHES = 10_000  # as many as vLLM keeps
_END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Publishes batches of events at the PUB socket `endpoint`; repeats them at the ROUTER socket `replay`, if any.

    A message is of three frames: `topic`, the number of the batch in 8 bytes, big-endian, and the batch. The first
    batch, number 0, says that nothing is cached. Who has missed some asks `replay` for the number from which it needs
    them, in 8 bytes, and gets the same messages, behind an empty frame if the question was; the last one has the number
    -1 and no batch. A subscriber that does not read loses what exceeds `kept` batches, and can ask again.

    The thread has the work to itself, apart from the event loop: a subscriber that asks for everything makes no stream
    wait. Raises `zmq.ZMQError` for an endpoint that cannot be had.
    """

    def __init__(
        self, endpoint: str, replay: str | None, topic: str, page_size: int, *, kept: int = KEPT_BATCHES
    ) -> None:
        self._topic = topic.encode()
        self._page_size = page_size
        self._history = History(page_size, kept)
        self._waiting: deque[list[KVEvent]] = deque()
        self._closing = False
        self._context = zmq.Context()
        self._files: list[Path] = []
        try:
            self._publishing = self._bind(zmq.PUB, endpoint, kept)
            # All that can be asked for at once, and as much for others who ask meanwhile; a ROUTER drops the rest.
            self._replaying = None if replay is None else self._bind(zmq.ROUTER, replay, 2 * (kept + 2))
        except zmq.ZMQError:
            self._give_back()
            raise
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self.publish([PagesCleared()])
        self._thread.start()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The addresses that were bound, with the ports that they have got."""
        bound = (self._publishing, self._replaying)
        return tuple(socket.get_string(zmq.LAST_ENDPOINT) for socket in bound if socket is not None)

    def publish(self, events: list[KVEvent]) -> None:
        """Send a batch soon. Does not wait; called from any thread."""
        if self._thread.ident is None or self._thread.is_alive():
            self._waiting.append(events)
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Send what waits, and give the addresses back."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._give_back()
        os.close(self._wake)

    def _bind(self, kind: int, endpoint: str, most_messages: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.sndhwm = most_messages
        socket.ipv6 = "[" in endpoint
        socket.bind(endpoint)
        if endpoint.startswith("ipc://"):
            self._files.append(Path(endpoint.removeprefix("ipc://")))
        return socket

    def _give_back(self) -> None:
        self._context.destroy(linger=0)
        for file in self._files:  # ZeroMQ leaves them
            file.unlink(missing_ok=True)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        replaying = self._replaying
        if replaying is not None:
            poller.register(replaying, zmq.POLLIN)
        try:
            while not (self._closing and not self._waiting):
                ready = dict(poller.poll())
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                    self._send_waiting()
                if replaying is not None and replaying in ready:
                    self._replay(replaying)
        except Exception:
            logger.exception("KV events are not published any more")

    def _send_waiting(self) -> None:
        while self._waiting:
            payload = encode(self._waiting.popleft(), self._page_size, time.time())
            number = self._history.add(payload)
            self._publishing.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    def _replay(self, socket: zmq.Socket[bytes]) -> None:
        identity, *delimiter, start = socket.recv_multipart()
        if len(start) != 8 or delimiter not in ([], [b""]):
            logger.debug("a subscriber asked for KV events in a way that is not understood")
            return
        head = [identity, *delimiter]
        for number, payload in self._history.since(int.from_bytes(start, "big"), time.time()):
            socket.send_multipart([*head, self._topic, number.to_bytes(8, "big"), payload])
        socket.send_multipart([*head, b"", _END, b""])
