"""Connected peers: the limits of what they send, and the messages that they get as fast as they read."""

from __future__ import annotations

import logging
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import ClassVar

from numaserve.server.kv_events import zmtp
from numaserve.server.kv_events.history import History
from numaserve.server.kv_events.zmtp import Frame, Violation

_logger = logging.getLogger(__name__)

_READ = 1024  # bytes read at once: the requests in them wait for the answers before them
_ALLOWED = 16 * 1024  # bytes that a peer may send at once
_ALLOWED_A_SECOND = 1024  # further bytes per second: heartbeats and requests are short
_AT_ONCE = 32  # messages sent to a peer before others get theirs
_END = (-1).to_bytes(8, "big", signed=True)
_NUMBER_BYTES = 8
_QUESTION_FRAMES = 2  # an empty frame and the number

Message = list[memoryview]


class Peer(ABC):
    """A connection to a peer. There is no queue: the next message is made when the one before it is sent.

    While a message is not completely sent, nothing is read, so that a peer's input uses bounded memory too.
    """

    socket_type: ClassVar[bytes]
    served_types: ClassVar[frozenset[bytes]]

    def __init__(self, connection: socket.socket, seconds: float, history: History, topic: bytes) -> None:
        """Serve `connection`; `seconds` is the current time on the clock of `read` and `write`."""
        self.connection = connection
        self._history = history
        self._topic = topic
        self._at = 0  # the number of the next batch
        self._decoder = zmtp.Decoder()
        self._allowed, self._allowed_at = float(_ALLOWED), seconds
        self._ready = False
        self._outgoing: Message = [memoryview(zmtp.GREETING), *zmtp.ready(self.socket_type)]

    @property
    def is_behind(self) -> bool:
        """True if a message is not sent completely."""
        return bool(self._outgoing)

    @property
    def is_late(self) -> bool:
        """True if the peer is still reading a batch that the history no longer keeps."""
        return self.is_behind and 0 < self._at <= self._history.first

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """True if the peer has no subscription or request, so that another peer may take its place."""

    @property
    def is_heard(self) -> bool:
        """True if the peer's input is read now."""
        return not self._outgoing

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def read(self, seconds: float) -> bool:
        """Read some of the peer's input; return whether anything came. Raises `Violation`, or `OSError` if the peer is
        gone."""
        data = self.connection.recv(_READ)
        if not data:
            raise ConnectionResetError
        self._allowed = min(_ALLOWED, self._allowed + (seconds - self._allowed_at) * _ALLOWED_A_SECOND) - len(data)
        self._allowed_at = seconds
        if self._allowed < 0:
            raise Violation(f"the reader sent more than {_ALLOWED} bytes at once or {_ALLOWED_A_SECOND} bytes/s")
        for frame in self._decoder.feed(data):
            self._take(frame)
        return True

    def write(self, _: float) -> bool:
        """Send without waiting; return whether more could be sent. Raises `OSError` if the peer is gone."""
        for _ in range(_AT_ONCE):
            if not self._outgoing:
                self._outgoing = self._next() if self._ready else []
                if not self._outgoing:
                    return False
            try:
                self._sent(self.connection.sendmsg(self._outgoing))
            except BlockingIOError:
                return False
        return True

    @abstractmethod
    def _next(self) -> Message:
        """Return the next message; an empty list if there is none now."""

    @abstractmethod
    def _message(self, frame: Frame) -> None:
        """Process a part of a message."""

    def _command(self, name: bytes, body: bytes) -> None:
        if name == b"PING":
            self._outgoing += zmtp.command(b"PONG", body[2:18])  # the PING's context follows its time to live

    def _take(self, frame: Frame) -> None:
        if not self._ready:
            kind = zmtp.socket_type_in(frame)
            if kind not in self.served_types:
                raise Violation(
                    f"the reader's socket type {kind[:16]!r} cannot connect to socket type {self.socket_type!r}"
                )
            self._ready = True
        elif frame.command:
            self._command(*zmtp.split_command(frame))
        else:
            self._message(frame)

    def _sent(self, count: int) -> None:
        while self._outgoing and count >= len(self._outgoing[0]):
            count -= len(self._outgoing.pop(0))
        if count:
            self._outgoing[0] = self._outgoing[0][count:]


class Subscriber(Peer):
    """A peer that gets each batch since it subscribed, except batches that were dropped before it read them."""

    socket_type = b"PUB"
    served_types = frozenset({b"SUB", b"XSUB"})

    def __init__(self, connection: socket.socket, seconds: float, history: History, topic: bytes) -> None:
        super().__init__(connection, seconds, history, topic)
        self._prefixes: set[bytes] = set()  # prefixes of the one topic; others are not stored

    @property
    def is_idle(self) -> bool:
        """True if the peer has no subscription; see `Peer`."""
        return not self._prefixes

    def _next(self) -> Message:
        if not self._prefixes or self._at >= self._history.end:
            return []
        number = max(self._at, self._history.first)
        self._at = number + 1
        return zmtp.message(self._topic, number.to_bytes(_NUMBER_BYTES, "big"), self._history.batch(number))

    def _message(self, frame: Frame) -> None:
        if frame.body[:1] in (b"\0", b"\1"):
            self._subscribe(frame.body[1:], wanted=frame.body[:1] == b"\1")

    def _command(self, name: bytes, body: bytes) -> None:
        if name in (b"SUBSCRIBE", b"CANCEL"):  # the form of ZMTP 3.1
            self._subscribe(body, wanted=name == b"SUBSCRIBE")
        else:
            super()._command(name, body)

    def _subscribe(self, prefix: bytes, *, wanted: bool) -> None:
        if not self._topic.startswith(prefix):
            return
        if not wanted:
            self._prefixes.discard(prefix)
            return
        if not self._prefixes:
            self._at = self._history.end
        self._prefixes.add(prefix)


class Summaries:
    """The holder of the single summary that may exist at a time: a summary contains all cached pages."""

    def __init__(self) -> None:
        self.holder: Peer | None = None
        self.since = 0.0


class Asker(Peer):
    """A peer that requests batches from a number on. Each request is answered before the next one is read."""

    socket_type = b"ROUTER"
    served_types = frozenset({b"DEALER", b"REQ", b"ROUTER"})

    def __init__(
        self, connection: socket.socket, seconds: float, history: History, topic: bytes, summaries: Summaries
    ) -> None:
        super().__init__(connection, seconds, history, topic)
        self._summaries = summaries
        self._frames: list[bytes] = []  # of the incomplete request
        self._questions: deque[tuple[int, list[bytes]]] = deque()  # the number, and the frames before each answer
        self._answer: Iterator[tuple[int, bytes]] | None = None  # to the first request

    @property
    def is_idle(self) -> bool:
        """True if the peer has no open request; see `Peer`."""
        return self.is_heard

    @property
    def is_heard(self) -> bool:
        """True if no request is being answered; see `Peer`."""
        return not self._questions and super().is_heard

    def close(self) -> None:
        """End the connection, and release the summary; see `Peer`."""
        self._leave_summary()
        super().close()

    def _next(self) -> Message:
        self._leave_summary()  # the summary has been sent
        if not self._questions:
            return []
        start, head = self._questions[0]
        if self._answer is None:
            self._at, self._answer = start, self._history.since(start, time.time())
        if self._at < self._history.first and not self._may_summarize():
            return []
        batch = next(self._answer, None)
        if batch is None:
            self._answer = None
            self._questions.popleft()
            return zmtp.message(*head, b"", _END, b"")
        number, payload = batch
        self._at = number + 1
        return zmtp.message(*head, self._topic, number.to_bytes(_NUMBER_BYTES, "big"), payload)

    def _message(self, frame: Frame) -> None:
        if len(self._frames) <= _QUESTION_FRAMES:  # one more frame marks an invalid request
            self._frames.append(frame.body)
        if frame.more:
            return
        (*head, number), self._frames = self._frames, []
        if len(number) == _NUMBER_BYTES and head in ([], [b""]):
            self._questions.append((int.from_bytes(number, "big"), head))
        else:
            _logger.debug("ignored an invalid replay request of a subscriber to KV events")

    def _may_summarize(self) -> bool:
        if self._summaries.holder is None:
            self._summaries.holder, self._summaries.since = self, time.monotonic()
        return self._summaries.holder is self

    def _leave_summary(self) -> None:
        if self._summaries.holder is self:
            self._summaries.holder = None
