"""A Unix socket to listen on, instead of an address."""

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

# Whoever is in the socket's group may connect: how a proxy of another user gets in, without letting everybody in.
NOT_FOR_OTHERS = 0o117


def bind_unix_listener(path: Path, certificate: Certificate | None = None) -> Listener:
    """Listen at `path`, with mode 0660. Clients that connect while the model is loading wait.

    A socket that a dead server left is replaced. Raises `OperatorError` for one that somebody listens at, for another
    file, and for a path that cannot be used.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(path.parent):
            remove_dead_socket(path, "--uds")
            before = os.umask(NOT_FOR_OTHERS)  # chmod after bind would leave a moment for anybody to connect
            try:
                bound.bind(os.fspath(path))
            finally:
                os.umask(before)
            made = path.lstat()
            # Now: a socket that is bound and does not listen looks as if its server was dead.
            bound.listen(BACKLOG)
    except OperatorError:
        bound.close()
        raise
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)  # a path that is too long has only a text
        raise OperatorError(f"cannot listen on {path}: {reason}; choose another --uds") from None
    return unix_listener(bound, certificate, on_close=partial(_remove, path, made.st_dev, made.st_ino))


def unix_listener(bound: socket.socket, certificate: Certificate | None, **more: Any) -> Listener:
    """The listener of a Unix socket, with a path or an abstract name; `more` are a `Listener`'s arguments."""
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
    """Keeps two servers that start at once from taking each other's socket for a dead one.

    Anybody can lock a folder that all may read, and for ever: after a second it has to do without.
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
    """Remove a socket that nobody listens at.

    Raises `OperatorError`, which says to choose another `option`, where somebody listens or it is another file.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OperatorError(f"{path} exists and is not a socket: choose another {option}, or remove the file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a server whose backlog is full is alive, too
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise OperatorError(f"another server is listening on {path}: choose another {option}")


def _remove(path: Path, device: int, inode: int) -> None:
    """Remove the socket, unless another one has its name by now."""
    with _alone_in(path.parent):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) == (device, inode):
            path.unlink()
