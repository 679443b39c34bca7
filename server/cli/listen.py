"""The listening socket, bound before anything is loaded: a port in use is known at once."""

from __future__ import annotations

import errno
import ipaddress
import socket

from numaserve.workers.errors import OperatorError

BACKLOG = 2048


def bind_listener(host: str, port: int) -> socket.socket:
    """Bind without listening yet; port 0 takes any free one. Raises `OperatorError` when the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise OperatorError(f"--host {host} is not an address of this machine: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        wrong_host = error.errno == errno.EADDRNOTAVAIL
        remedy = "choose an address of this machine as --host" if wrong_host else "choose another --port"
        raise OperatorError(f"cannot listen on {host} port {port}: {error.strerror}; {remedy}") from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """A URL that reaches the listener from this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 compared, not bound
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listens_locally(listener: socket.socket) -> bool:
    """Whether only programs of this machine can connect, which includes what pages in a browser run."""
    return listener.family != socket.AF_UNIX and ipaddress.ip_address(listener.getsockname()[0]).is_loopback
