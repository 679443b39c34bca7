"""The private directory of the sockets of one worker group."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from numaserve.workers.interface.errors import OperatorError

# sun_path of sockaddr_un holds 108 bytes including the final NUL (linux/un.h).
MAX_SOCKET_PATH = 107
_PREFIX = "numaserve-sockets-"


class SocketDirectory:
    """A new directory of mode 0700 for the sockets `rank0.sock` ... of one group.

    The directory is created under ``$RUNTIME_DIRECTORY`` (systemd), else ``$XDG_RUNTIME_DIR``, else the temporary
    directory. A candidate that cannot be written, or whose socket paths would be longer than the kernel allows, is
    skipped. Directories from servers of the same user that were killed together with their workers are removed.

    Raises `OperatorError` when no candidate is left.
    """

    def __init__(self, world_size: int) -> None:
        refused: list[str] = []
        for parent in _candidates():
            _remove_stale(parent)
            try:
                self.path, self._lock = _make(parent)
            except OSError as error:
                refused.append(f"{parent}: {error.strerror}")
                continue
            if len(os.fsencode(self.path / f"rank{world_size - 1}.sock")) <= MAX_SOCKET_PATH:
                return
            self.remove()
            refused.append(f"{parent}: socket paths would be longer than {MAX_SOCKET_PATH} bytes")
        raise OperatorError(
            "no directory is usable for the sockets of the workers: set RUNTIME_DIRECTORY to a short, writable "
            "path (" + "; ".join(refused) + ")"
        )

    def remove(self) -> None:
        """Remove the directory and its content, which may be gone already. To be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make(parent: Path) -> tuple[Path, int]:
    """Return the directory, and a descriptor that holds a lock on it until this process ends.

    The directory gets its final name after it is locked: a server that starts at the same moment never finds it
    unlocked.
    """
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))  # mkdtemp creates it with mode 0700
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return made.rename(parent / made.name.removeprefix(".")), lock
    except OSError:
        os.close(lock)
        made.rmdir()
        raise


def _remove_stale(parent: Path) -> None:
    """Remove our directories that no process holds a lock on. Directories that cannot be removed stay."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_if_stale(Path(entry.path))


def _remove_if_stale(path: Path) -> None:
    # Any user may create files in a temporary directory: neither links nor others' directories are followed.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    os.unlink(entry.name, dir_fd=descriptor)
        path.rmdir()  # fails, correctly, when there is anything else in it
    finally:
        os.close(descriptor)


def _candidates() -> list[Path]:
    # RUNTIME_DIRECTORY may name several directories with colons between them (systemd.exec(5)).
    named = (os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0], os.environ.get("XDG_RUNTIME_DIR", ""))
    return [Path(name) for name in (*named, tempfile.gettempdir()) if name]
