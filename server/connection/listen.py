"""The listening socket, bound before anything is loaded, so that an address in use is reported at once."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable

from numaserve.server.connection.tls import Certificate
from numaserve.workers.interface.errors import OperatorError

BACKLOG = 2048


class Listener:
    """A bound socket and its addresses. `on_close` is called once, when the listener is closed.

    `place` names the listener in messages, and `curl` are curl's options besides the URL. With `certificate`, the
    listener uses TLS. If the service manager keeps the socket open (`kept_open`), connections wait until a process
    accepts them.
    """

    def __init__(
        self,
        bound: socket.socket,
        *,
        authority: str,
        place: str | None = None,
        curl: tuple[str, ...] = (),
        is_loopback: bool,
        certificate: Certificate | None = None,
        kept_open: bool = False,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        bound.setblocking(False)
        self.socket = bound
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://{authority}"
        self.place = place or self.url
        # A certificate rarely names the loopback address.
        self.curl = (*curl, "--insecure") if certificate else curl
        self.certificate = certificate
        self.kept_open = kept_open
        self.is_loopback = is_loopback  # reachable only by programs of this machine, web pages in a browser included
        self._on_close = on_close

    @property
    def is_local(self) -> bool:
        """Return whether no other machine can reach the socket."""
        return self.is_loopback or self.socket.family == socket.AF_UNIX

    def close(self) -> None:
        """Close the socket and remove its file. May be called twice."""
        self.socket.close()
        self._on_close()
        self._on_close = lambda: None

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bind_listener(host: str, port: int, certificate: Certificate | None = None) -> Listener:
    """Bind without listening yet; port 0 takes any free port. Raises `OperatorError` for an unavailable address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise OperatorError(f"--host {host} is not an address of this machine: {error.strerror}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        wrong_host = error.errno == errno.EADDRNOTAVAIL
        remedy = "choose an address of this machine as --host" if wrong_host else "choose another --port"
        raise OperatorError(f"cannot listen on {host} port {port}: {error.strerror}; {remedy}") from None
    return internet_listener(bound, certificate)


def internet_listener(bound: socket.socket, certificate: Certificate | None, *, kept_open: bool = False) -> Listener:
    """Return the listener of an IPv4 or IPv6 socket."""
    numeric, port = bound.getsockname()[:2]
    address_on = ipaddress.ip_address(numeric.partition("%")[0])
    return Listener(
        bound,
        authority=f"{_local_name(address_on)}:{port}",
        is_loopback=address_on.is_loopback,
        certificate=certificate,
        kept_open=kept_open,
    )


def _local_name(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return the host part of a URL that reaches the address from this machine."""
    if address.is_unspecified:
        return "127.0.0.1"
    return f"[{address}]" if address.version == 6 else str(address)
