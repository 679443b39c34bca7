"""Listening sockets for KV events, at addresses in ZeroMQ's notation."""

import re
import socket
from pathlib import Path

_BACKLOG = 128
_IPC = "ipc://"
_TCP = re.compile(r"tcp://(?P<host>\*|\[[^\]]+\]|[^:]+):(?P<port>\d+)")


def listen(endpoint: str) -> socket.socket:
    """Listen at ``ipc://PATH`` or ``tcp://ADDRESS:PORT``; `*` is every IPv4 address. Raises `OSError`."""
    if endpoint.startswith(_IPC):
        return _listening(socket.AF_UNIX, endpoint.removeprefix(_IPC))
    found = _TCP.fullmatch(endpoint)
    if found is None:
        raise OSError(f"{endpoint!r} is not an address such as ipc://PATH or tcp://ADDRESS:PORT")
    host = None if found["host"] == "*" else found["host"].strip("[]")
    kind = socket.AF_INET6 if endpoint.startswith("tcp://[") else socket.AF_INET
    family, _, _, _, address = socket.getaddrinfo(host, int(found["port"]), kind, flags=socket.AI_PASSIVE)[0]
    return _listening(family, address)


def address_of(listener: socket.socket) -> str:
    """Return the address of a listener, with its actual port."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"{_IPC}{name}"
    return f"tcp://[{name[0]}]:{name[1]}" if listener.family == socket.AF_INET6 else f"tcp://{name[0]}:{name[1]}"


def end_listening(listener: socket.socket) -> None:
    """Release the address; a Unix socket leaves no file."""
    path = listener.getsockname() if listener.family == socket.AF_UNIX else None
    listener.close()
    if path is not None:
        Path(path).unlink(missing_ok=True)


def _listening(family: int, address: object) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
