"""The Unix socket to listen on instead of an address."""

import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from numaserve.server.connection.listen import BACKLOG, Listener
from numaserve.server.connection.tls import Certificate
from numaserve.workers.interface.errors import OperatorError

# Members of the socket's group may connect, so that a proxy of another user can, but not every user.
NOT_FOR_OTHERS = 0o117


def bind_unix_listener(path: Path, certificate: Certificate | None = None) -> Listener:
    """Listen at `path`, with mode 0660. Clients that connect while the model is loading wait.

    The socket of a dead server is replaced. Raises `OperatorError` if another process listens at `path`, for another
    kind of file, and for a path that cannot be used.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(path.parent):
            remove_dead_socket(path, "--uds")
            before = os.umask(NOT_FOR_OTHERS)  # with chmod after bind, any user could connect for a moment
            try:
                bound.bind(os.fspath(path))
            finally:
                os.umask(before)
            made = path.lstat()
            # At once: a socket that is bound and does not listen looks like that of a dead server.
            bound.listen(BACKLOG)
    except OperatorError:
        bound.close()
        raise
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)  # the error for a path that is too long has no strerror
        raise OperatorError(f"cannot listen on {path}: {reason}; choose another --uds") from None
    return unix_listener(bound, certificate, on_close=partial(_remove, path, made.st_dev, made.st_ino))


def unix_listener(bound: socket.socket, certificate: Certificate | None, **more: Any) -> Listener:
    """Return the listener of a Unix socket with a path or an abstract name; `more` are arguments of `Listener`."""
    address = bound.getsockname()
    if isinstance(address, bytes):  # an abstract name: it begins with a zero
        name = address[1:].decode(errors="replace")
        place, curl = f"@{name}", ("--abstract-unix-socket", name)
    else:
        place, curl = address, ("--unix-socket", address)
    return Listener(
        bound, authority="localhost", place=place, curl=curl, is_loopback=False, certificate=certificate, **more
    )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock `folder`, so that two servers that start together do not take each other's sockets for dead ones.

    Any user can lock a readable folder indefinitely; after one second the caller continues without the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(100):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def remove_dead_socket(path: Path, option: str) -> None:
    """Remove a socket on which no process listens.

    Raises `OperatorError`, which advises another `option`, if a process listens or `path` is another kind of file.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OperatorError(f"{path} exists and is not a socket: choose another {option}, or remove the file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a server with a full backlog is alive too
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise OperatorError(f"another server is listening on {path}: choose another {option}")


def _remove(path: Path, device: int, inode: int) -> None:
    """Remove the socket, unless another one has taken its path."""
    with _alone_in(path.parent):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) == (device, inode):
            path.unlink()
