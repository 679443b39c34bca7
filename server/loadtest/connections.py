"""The connections of one client, all closed before its event loop is."""

import asyncio
import contextlib
import socket
import weakref

import aiohttp

_POLL_S = 0.001


class Connections:
    """Makes the sockets of a connector (`aiohttp.TCPConnector(socket_factory=...)`) and ends them.

    A connector forgets a TLS connection when it closes it, while the connection still waits for the server's
    close_notify. An event loop that is closed then reports errors. Python 3.11 has no other way to wait for it: aiohttp
    aborts only the connections that it keeps.
    """

    def __init__(self) -> None:
        self._opened: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def open(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """Return a new socket for `address` and remember it."""
        family, kind, protocol, *_ = address
        opened = socket.socket(family, kind, protocol)
        self._opened.add(opened)
        return opened

    async def close(self) -> None:
        """End all connections and wait until their transports have closed the sockets."""
        for opened in self._opened:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        while any(opened.fileno() >= 0 for opened in self._opened):
            await asyncio.sleep(_POLL_S)
