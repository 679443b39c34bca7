"""The connection of a front end to an agent, and the socket that makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq
from numaserve.workers.interface.host_links import Address, KeyPair, connect


class Wire(Protocol):
    """A connection to an agent, which is made when it can be."""

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """Send the frames of a message. Return False if the agent does not read its messages."""

    def close(self) -> None:
        """Close the connection: no callback is called any more. To be called once."""


@dataclass(frozen=True)
class AgentAddress:
    """The address and the public key of an agent, and the keys of this front end."""

    address: Address
    public: str
    keys: KeyPair

    def open(self, on_frames: Callable[[list[bytes]], None], on_end: Callable[[], None]) -> Wire:
        """Open a connection, whose callbacks are called in the running event loop: `on_frames` with the frames of each
        message, and `on_end` when the connection has ended."""
        return _SocketWire(self, on_frames, on_end)


class _SocketWire:
    """A wire over ZeroMQ, whose messages are encrypted."""

    def __init__(
        self, agent: AgentAddress, on_frames: Callable[[list[bytes]], None], on_end: Callable[[], None]
    ) -> None:
        self._on_frames, self._on_end = on_frames, on_end
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._loop.add_reader(_descriptor(self._socket), self._on_readable)
        self._loop.add_reader(_descriptor(self._monitor), self._on_event)
        connect(self._socket, agent.address, agent.public, agent.keys)

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """See `Wire`."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        # Sending may swallow the edge that announces a received message (zmq_getsockopt(3), ZMQ_FD): check again.
        self._loop.call_soon(self._on_readable)
        return True

    def close(self) -> None:
        """See `Wire`."""
        self._closed = True
        self._loop.remove_reader(_descriptor(self._socket))
        self._loop.remove_reader(_descriptor(self._monitor))
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _on_readable(self) -> None:
        # The descriptor is edge-triggered, so everything is read until the socket is empty.
        while not self._closed and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._on_frames(self._socket.recv_multipart(zmq.NOBLOCK))

    def _on_event(self) -> None:
        while not self._closed and int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._monitor.recv_multipart(zmq.NOBLOCK)
            self._on_end()


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))
