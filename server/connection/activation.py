"""The sockets that the service manager listens on for this process (sd_listen_fds(3)), and that outlive it."""

import os
import re
import socket
from collections.abc import MutableMapping

from numaserve.server.connection.listen import Listener, internet_listener
from numaserve.server.connection.tls import Certificate
from numaserve.server.connection.unix_socket import unix_listener
from numaserve.workers.interface.errors import OperatorError

_FIRST = 3
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def activated_listeners(environment: MutableMapping[str, str], certificate: Certificate | None) -> list[Listener]:
    """Return the listeners passed to this process, in the order of the socket unit; an empty list if none were passed.

    The variables that name them are removed from `environment`, so that no child takes the sockets for its own. Raises
    `OperatorError` for a descriptor that cannot be listened on.
    """
    pid, count, names = (environment.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()):  # the sockets are for an ancestor of this process
        return []
    if not re.fullmatch("[1-9][0-9]{0,3}", count):
        raise OperatorError(
            f"LISTEN_FDS={count!r} is not a number of sockets (1 to 9999): start the server through its socket unit"
        )
    named = names.split(":")
    named += [""] * (int(count) - len(named))
    return [_listener(_FIRST + index, named[index], certificate) for index in range(int(count))]


def _listener(descriptor: int, name: str, certificate: Certificate | None) -> Listener:
    what = f"file descriptor {descriptor}" + (f" ({name})" if name else "")
    try:
        os.set_inheritable(descriptor, False)
        given = socket.socket(fileno=descriptor)
        is_stream = given.type == socket.SOCK_STREAM
        listens = is_stream and bool(given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError as error:
        raise OperatorError(f"{what} from systemd is not a socket: {error.strerror}. Correct the socket unit") from None
    if not is_stream or given.family not in {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX}:
        raise OperatorError(f"{what} from systemd is not a stream socket: use ListenStream= in the socket unit")
    if not listens:
        raise OperatorError(
            f"{what} from systemd is a connection, not a listening socket: set Accept=no in the socket unit"
        )
    if given.family == socket.AF_UNIX:
        return unix_listener(given, certificate, kept_open=True)
    return internet_listener(given, certificate, kept_open=True)
