"""The folder of the disk tier: who may use it, and how much of the disk."""

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from numaserve.server.scheduler.disk.changes import RecordKind
from numaserve.workers.interface.errors import OperatorError

_LOCK_NAME = "lock"
_SPARE_BYTES = 1 << 30  # left free on the file system
_FILE = re.compile(r"rank-(?P<rank>\d{1,4})\.(?P<kind>pages|anchors)")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_GIB = 1 << 30
# Why a file system is a poor place, by its name in /proc/self/mountinfo.
_POOR = {
    "tmpfs": "it is in memory and is lost when the machine restarts",
    "ramfs": "it is in memory and is lost when the machine restarts",
    "overlay": "it is a layer of a container and is lost with the container: mount a volume there",
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "9p", "ceph"), "it is on the network, and may be slow or hang"),
}

_log = logging.getLogger(__name__)


def record_file_name(rank: int, kind: RecordKind) -> str:
    """Return the name of a rank's file of records."""
    return f"rank-{rank}.{kind}"


class RecordFile(NamedTuple):
    """A file of records of a rank."""

    name: str
    rank: int
    kind: RecordKind


class KvDiskFolder:
    """The open folder, which one server at a time uses. The kernel releases its lock with the process, so nothing needs
    repair after a crash."""

    def __init__(self, path: Path) -> None:
        """Open the folder, or make it for this user alone. Raises `OperatorError`."""
        with _explained(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path = path.resolve()
            self.fd = os.open(self.path, _OPEN_FOLDER | os.O_NOFOLLOW)
        try:
            _check_owner(os.fstat(self.fd), self.path)
            with _explained(self.path):
                _check_parents(self.path)
                self._lock = os.open(_LOCK_NAME, _OPEN_FILE | os.O_CREAT, 0o600, dir_fd=self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        try:
            self._take_lock()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another server use the folder."""
        os.close(self._lock)
        os.close(self.fd)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Yield a descriptor of a file to read and write. Raises `OSError`."""
        fd = os.open(name, _OPEN_FILE | os.O_NONBLOCK, dir_fd=self.fd)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", name)
            yield fd
        finally:
            os.close(fd)

    def record_files(self) -> list[RecordFile]:
        """Return the ranks' files of records. Raises `OSError`."""
        matches = (_FILE.fullmatch(name) for name in os.listdir(self.fd))  # noqa: PTH208 pathlib takes no descriptor
        return [
            RecordFile(match[0], int(match["rank"]), "pages" if match["kind"] == "pages" else "anchors")
            for match in matches
            if match is not None
        ]

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def usable_bytes(self, limit: int) -> int:
        """Return how much of `limit` the disk has: the tier's own files count as free, and a reserve does not.

        Warns where that is less. A refusal was rejected: a log that fills the disk must not keep a server from
        starting, for want of a cache. Raises `OperatorError` where there is no space at all.
        """
        with _explained(self.path):
            info = os.statvfs(self.fd)
            own = sum(self._blocks(file.name) for file in self.record_files())
        usable = info.f_bavail * info.f_frsize + own - _SPARE_BYTES
        if usable <= 0:
            raise OperatorError(
                f"{self.path}: the disk has less than {_SPARE_BYTES // _GIB} GiB left, which stays free: free disk "
                "space, or leave out kv_disk_path"
            )
        if usable < limit:
            _log.warning(
                "%s: the disk has space for %.1f GiB of the disk tier, less than kv_disk_gib %.1f; using that",
                *(self.path, usable / _GIB, limit / _GIB),
            )
        return min(usable, limit)

    def warn_of_file_system(self) -> None:
        """Warn of a file system that is a poor place for the tier."""
        kind = file_system_of(os.fstat(self.fd).st_dev)
        if kind in _POOR:
            _log.warning("kv_disk_path %s has the file system %s: %s", self.path, kind, _POOR[kind])

    def _blocks(self, name: str) -> int:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            return 0

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise OperatorError(
                f"{self.path}: another server (process {owner}) uses this folder, and one at a time may: give each "
                "server a kv_disk_path of its own, or stop the other one"
            ) from None
        except OSError as error:
            raise OperatorError(f"{self.path}: the file system cannot lock files ({error.strerror})") from error
        with _explained(self.path):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)


def file_system_of(device: int) -> str | None:
    """Return the name of a mounted file system; None: it is unknown, as for parts of btrfs."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == number:
            return after.split()[0]
    return None


def _check_owner(info: os.stat_result, path: Path) -> None:
    if info.st_uid != os.geteuid():
        raise OperatorError(
            f"{path}: the folder belongs to user {info.st_uid}, and must belong to the server's user {os.geteuid()}, "
            "because cached prompts lie in it: name another folder as kv_disk_path, or change its owner"
        )
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OperatorError(
            f"{path}: other users can write to the folder (mode {stat.S_IMODE(info.st_mode):03o}), and none may: run "
            f"chmod 700 {path}"
        )


def _check_parents(path: Path) -> None:
    """Refuse a folder that any user could exchange for another: the ranks open their files by its path.

    A parent that its group can write is allowed: the volumes of Kubernetes are like that.
    """
    for parent in path.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise OperatorError(
                f"{path}: every user can rename the folder, because {parent} has mode {stat.S_IMODE(mode):03o}: run "
                f"chmod o-w {parent}, or name another folder as kv_disk_path"
            )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise an `OperatorError` for an `OSError` of the block."""
    try:
        yield
    except OSError as error:
        raise OperatorError(
            f"{path}: the folder of the disk tier cannot be used ({error.strerror or error}): name a folder of the "
            "server's user as kv_disk_path"
        ) from error
