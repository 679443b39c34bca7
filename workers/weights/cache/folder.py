"""The folder of the cache: its users, its contents, and the removal of files.

All names are resolved below one open directory, without following links, so no other user can redirect the server by
exchanging a folder. Locks are flock's, which the kernel releases with the process, so nothing needs repair after a
crash.

    GROUP.RANKofWORLD        packed weights, complete; never written again
    GROUP.RANKofWORLD.part   being written by the process that holds its lock; without one, left by a writer that died
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from numaserve.workers.weights.cache.errors import CacheError

PART = ".part"
_NAME = re.compile(r"(?P<group>[0-9a-f]{32})\.\d+of\d+(?P<part>\.part)?")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_SPARE_BYTES = 1 << 30  # that the cache leaves free on its file system


@dataclass(frozen=True)
class CacheKey:
    """The name of one rank's packed weights. Ranks of one group have the same `group`."""

    group: str  # hexadecimal
    rank: int
    world_size: int

    @property
    def file_name(self) -> str:
        """The name of the rank's file."""
        return f"{self.group}.{self.rank}of{self.world_size}"


@dataclass(frozen=True)
class CacheFile:
    """A file of the cache."""

    name: str
    group: str
    is_part: bool
    nbytes: int
    used_ns: int  # when it was last written or read


class CacheFolder:
    """The open folder. Raises `CacheError` if it cannot be made, or if others can access it."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._path = path
        with _told(path):
            if create:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            _require_own(os.fstat(self._fd), path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the folder's descriptor."""
        os.close(self._fd)

    def __enter__(self) -> CacheFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, name: str) -> int | None:
        """Return a descriptor of the file `name`; None if there is none. Raises `CacheError`."""
        path = self._path / name
        with _told(path):
            try:
                fd = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=self._fd)
            except FileNotFoundError:
                return None
        try:
            _require_own(os.fstat(fd), path)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CacheError(f"{path} is not a file")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def files(self) -> list[CacheFile]:
        """Return the cache's files in the folder, without other files. Raises `CacheError`."""
        found = []
        with _told(self._path):
            for name in os.listdir(self._fd):  # noqa: PTH208 pathlib takes no descriptor
                match = _NAME.fullmatch(name)
                if match is None:
                    continue
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                    info = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        is_part = match["part"] is not None
                        found.append(CacheFile(name, match["group"], is_part, info.st_size, info.st_mtime_ns))
        return found

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already. Processes that have it open can still read it. Raises
        `CacheError`."""
        with _told(self._path / name), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    @contextlib.contextmanager
    def new_file(self, key: CacheKey, nbytes: int, group_bytes: int, limit: int) -> Iterator[int]:
        """Yield a descriptor to write `nbytes` to, which become the weights under `key` when the block ends without an
        error.

        Space is freed by removing the least recently used groups. `group_bytes` are kept free for all ranks of the
        key's group, so that ranks do not take space from each other. Raises `CacheError`, before the block, when that
        is not enough or another process writes the same file.
        """
        part = key.file_name + PART
        fd = self._lock_part(part)
        try:
            # Other processes that count files see the full size before the data is written.
            with _told(self._path / part), self._locked():
                self._make_room(key, nbytes, group_bytes, limit)
                os.ftruncate(fd, 0)
                os.ftruncate(fd, nbytes)
            with _told(self._path / part):
                yield fd
                with self._locked():
                    # Another group's writer may have removed the file to free space, and a third may have begun a file
                    # of that name.
                    if not self._is_at(fd, part):
                        raise CacheError(f"{self._path / part}: another process removed the file to free disk space")
                    os.rename(part, key.file_name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with contextlib.suppress(OSError), self._locked():
                if self._is_at(fd, part):
                    os.unlink(part, dir_fd=self._fd)
            raise
        finally:
            os.close(fd)

    def _lock_part(self, part: str) -> int:
        """Create the file, or take over the file of a writer that died, and lock it.

        This happens under the folder's lock: otherwise a process that frees space could take a file that is not locked
        yet for one of a writer that died.
        """
        with _told(self._path / part), self._locked():
            fd = os.open(part, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=self._fd)
            try:
                _require_own(os.fstat(fd), self._path / part)
                if not _try_lock(fd):
                    raise CacheError(f"{self._path / part}: another process is writing this file")
            except BaseException:
                os.close(fd)
                raise
        return fd

    def _is_at(self, fd: int, name: str) -> bool:
        """Return whether the file still has that name: another process may have removed it while it was written."""
        try:
            there = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(fd))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold a lock: one process at a time counts the files and removes some."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _make_room(self, key: CacheKey, nbytes: int, group_bytes: int, limit: int) -> None:
        if group_bytes > limit:
            raise CacheError(
                f"the packed weights ({_gib(group_bytes)}) exceed the limit of {_gib(limit)}; raise --weights-cache-gib"
            )
        self._remove_dead_parts(key)
        others: dict[str, list[CacheFile]] = {}
        for file in self.files():
            if file.group != key.group:
                others.setdefault(file.group, []).append(file)
        # A group that is being written is in use, however old its other files are.
        groups = sorted(
            others.values(), key=lambda files: (any(f.is_part for f in files), max(f.used_ns for f in files))
        )
        total = group_bytes + sum(file.nbytes for files in groups for file in files)
        while total > limit:
            for file in groups.pop(0):
                self.remove(file.name)
                total -= file.nbytes
        free = os.statvfs(self._fd)
        if free.f_bavail * free.f_frsize < nbytes + _SPARE_BYTES:
            raise CacheError(
                f"{self._path}: less than {_gib(nbytes)} plus a reserve of {_gib(_SPARE_BYTES)} is free; free disk"
                " space, or set XDG_CACHE_HOME to a folder on another file system"
            )

    def _remove_dead_parts(self, key: CacheKey) -> None:
        for file in self.files():
            if not file.is_part or file.name == key.file_name + PART:
                continue
            with contextlib.suppress(OSError):
                fd = os.open(file.name, os.O_RDONLY | _FLAGS, dir_fd=self._fd)
                try:
                    if _try_lock(fd):
                        os.unlink(file.name, dir_fd=self._fd)
                finally:
                    os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_own(info: os.stat_result, path: Path) -> None:
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise CacheError(f"{path}: must be owned by the server's user and inaccessible to all others; remove it")


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Raise a `CacheError` for an `OSError` of the block."""
    try:
        yield
    except OSError as error:
        reason = "the path is a symbolic link" if error.errno == errno.ELOOP else os.strerror(error.errno or 0)
        raise CacheError(f"{path}: {reason}") from error


def _gib(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.2f} GiB"
