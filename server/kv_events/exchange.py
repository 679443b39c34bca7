"""The connections of KV events: one thread serves them in bounded memory, whatever peers send or leave unread."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from numaserve.server.kv_events.peer import Peer, Summaries
from numaserve.server.kv_events.zmtp import Violation

logger = logging.getLogger(__name__)

MOST_PEERS = 128  # of one address
_SUMMARY_SECONDS = 30.0  # limit for reading a summary, which other peers may wait for
_PAUSE_SECONDS = 0.1  # when there are no descriptors for new connections
_COMPLAINT_SECONDS = 60.0  # between two log lines

Make = Callable[[socket.socket, float], Peer]


@dataclass(eq=False)
class _Door:
    """An address and the peers that connected to it, the earliest first."""

    listener: socket.socket
    make: Make
    peers: dict[Peer, int] = field(default_factory=dict)  # with the selector events that the peer waits for


class Exchange:
    """The connections of KV events, served by one thread. Its memory is bounded whatever peers send or leave unread.

    A peer takes batches from the history as fast as it reads, without a queue in between. A peer that is still reading
    a batch which the history has dropped is disconnected. It reconnects and requests what it lacks. A peer that sends
    more than its limit is disconnected too, and so is the earliest idle peer when there are too many. Other peers are
    not affected.
    """

    def __init__(self, wake: int, summaries: Summaries) -> None:
        """Create an exchange without addresses; `wake` is an eventfd that ends the wait of a turn."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(wake, selectors.EVENT_READ)
        self._doors: list[_Door] = []
        self._summaries = summaries
        self._more = False  # whether a peer takes more than it was sent last
        self._complains_from = 0.0

    def open(self, listener: socket.socket, make: Make) -> None:
        """Accept connections at `listener`; `make` returns the peer for a connection and the time."""
        door = _Door(listener, make)
        self._doors.append(door)
        self._selector.register(listener, selectors.EVENT_READ, door)

    def turn(self) -> bool:
        """Wait until there is something to do, and read what peers send. Return whether `wake` is set."""
        waits = _SUMMARY_SECONDS if self._summaries.holder is not None else None
        woken = False
        for key, _ in self._selector.select(0 if self._more else waits):
            if key.data is None:
                woken = True
            elif isinstance(key.data, _Door):
                self._accept(key.data)
            else:
                door, peer = key.data
                if peer in door.peers and peer.is_heard:
                    self._try(door, peer, peer.read)
        return woken

    def send(self) -> None:
        """Send the messages that peers accept now, up to a limit for each peer."""
        now, holder, self._more = time.monotonic(), self._summaries.holder, False
        for door in self._doors:
            for peer in tuple(door.peers):
                self._more |= self._try(door, peer, peer.write)
                if peer is self._summaries.holder:
                    late = now - self._summaries.since > _SUMMARY_SECONDS
                else:
                    late = peer.is_late
                if late:
                    self._end(door, peer)
                elif peer in door.peers:
                    self._watch(door, peer)
        self._more |= holder is not self._summaries.holder  # peers earlier in the loop may have waited for the summary

    def close(self) -> None:
        """End all connections. Listeners belong to the caller."""
        for door in self._doors:
            for peer in tuple(door.peers):
                self._end(door, peer)
        self._selector.close()

    def _accept(self, door: _Door) -> None:
        if len(door.peers) >= MOST_PEERS:
            idle = next((peer for peer in door.peers if peer.is_idle), None)
            if idle is not None:
                self._end(door, idle)
        try:
            connection, _ = door.listener.accept()
        except BlockingIOError:
            return  # the connection is gone
        except OSError as error:
            self._complain("could not accept a connection for KV events: %s", error)
            time.sleep(_PAUSE_SECONDS)  # the connection stays pending, and other peers wait for their messages
            return
        if len(door.peers) >= MOST_PEERS:
            connection.close()
            self._complain("refused a connection for KV events: %d are open already, which is the limit", MOST_PEERS)
            return
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        door.peers[door.make(connection, time.monotonic())] = 0

    def _try(self, door: _Door, peer: Peer, action: Callable[[float], bool]) -> bool:
        """Read or write; a peer for which this fails is disconnected."""
        try:
            return action(time.monotonic())
        except Violation as violation:
            self._complain("disconnected a reader of KV events: %s", violation)
        except BlockingIOError:
            return False
        except OSError:
            pass
        self._end(door, peer)
        return False

    def _watch(self, door: _Door, peer: Peer) -> None:
        """Wait for the peer's next action: sending or reading; for neither while the peer waits for others."""
        events = selectors.EVENT_READ if peer.is_heard else selectors.EVENT_WRITE if peer.is_behind else 0
        before = door.peers[peer]
        if events == before:
            return
        door.peers[peer] = events
        if not before:
            self._selector.register(peer.connection, events, (door, peer))
        elif events:
            self._selector.modify(peer.connection, events, (door, peer))
        else:
            self._selector.unregister(peer.connection)

    def _end(self, door: _Door, peer: Peer) -> None:
        if peer in door.peers:
            if door.peers.pop(peer):
                self._selector.unregister(peer.connection)
            peer.close()

    def _complain(self, text: str, *values: object) -> None:
        """Log a warning, at limited rate: peers could cause a line at each turn."""
        if time.monotonic() >= self._complains_from:
            self._complains_from = time.monotonic() + _COMPLAINT_SECONDS
            logger.warning(text, *values)
