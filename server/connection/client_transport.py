"""The transport to a client that reads slowly or not at all, or still sends when its connection is closed."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

from numaserve.server.common.patience import PatientTimer

_RESET = struct.pack("ii", 1, 0)  # linger on, 0 s: closing discards unsent data


class ClientTransport:
    """A transport that closes in bounded time whatever the client does.

    `close` gives a client that is still sending time to read the answer. Closing at once would answer its next bytes
    with a reset, which discards the unread answer. An answer is given up after `write_seconds` without progress,
    counted while this process runs; a slow reader is not cut off. With None there is no such limit.

    Timers run only while something is pending.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        is_sending: Callable[[], bool],
        *,
        linger_seconds: float,
        linger_bytes: int,
        write_seconds: float | None,
    ) -> None:
        self._transport = transport
        self._is_sending = is_sending
        self._loop = asyncio.get_running_loop()
        self._linger_seconds = linger_seconds
        self._linger_bytes = linger_bytes
        self._write_seconds = write_seconds
        self._closing = False
        self._lost = False
        self._linger_timer: asyncio.TimerHandle | None = None
        self._discarded = 0
        self._write_timer: PatientTimer | None = None
        self._written = 0
        self._read_by_client = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data, or buffer it until the client reads."""
        self._written += len(data)
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Return whether no more data may be sent."""
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Send the buffered data, then close: at once, or after the client had time to stop sending."""
        if self._lost:
            return
        if self._closing or not self._is_sending():
            self._close_now()
            return
        self._closing = True
        if not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self.linger()

    def linger(self) -> None:
        """Close after a time limit or too much discarded data, unless `stop_lingering` is called first."""
        self._discarded = 0
        if self._linger_timer is None:
            self._linger_timer = self._loop.call_later(self._linger_seconds, self._close_now)

    def stop_lingering(self) -> None:
        """Keep the connection open: the client has sent its whole request."""
        if self._linger_timer is not None and not self._closing:
            self._linger_timer.cancel()
            self._linger_timer = None

    def discard(self, count: int) -> None:
        """Count discarded bytes, and close the connection when there are too many."""
        self._discarded += count
        if self._discarded > self._linger_bytes:
            self._close_now()

    def watch_writes(self) -> None:
        """Start the time limit on writes: nothing else notices a client that stops reading."""
        if self._write_seconds is None or self._write_timer is not None:
            return
        if self._transport.get_write_buffer_size():
            self._read_by_client = self._taken()
            self._write_timer = PatientTimer(self._check_writes)
            self._write_timer.start(self._write_seconds)

    def lost(self) -> None:
        """Stop the timers of a closed connection."""
        self._closing = self._lost = True
        self._is_sending = _never  # the callback refers to the connection, which refers to this object
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        if self._write_timer is not None:
            self._write_timer.stop()
            self._write_timer = None  # the timer refers to this object

    def _taken(self) -> int:
        return self._written - self._transport.get_write_buffer_size()

    def _check_writes(self) -> None:
        self._write_timer = None
        if self._transport.get_write_buffer_size() and self._taken() == self._read_by_client:
            self._reset()
        else:
            self.watch_writes()

    def _reset(self) -> None:
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            # Otherwise the kernel would keep up to megabytes of the unread answer for minutes.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def _close_now(self) -> None:
        self._closing = True
        self._transport.close()
        self.watch_writes()


def _never() -> bool:
    """Return False: a closed connection sends nothing."""
    return False
