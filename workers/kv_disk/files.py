"""Files of records, past the page cache: the KV memory is the cache of the records."""

import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Protocol

_REFUSES_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


class DiskError(Exception):
    """The disk tier cannot be used."""


class File(Protocol):
    """A file that any number of threads read and write. Memory, offsets and lengths are multiples of `ALIGNMENT`.

    All methods raise `OSError`.
    """

    def read(self, into: memoryview, offset: int) -> int:
        """Fill memory from an offset on, and return the bytes that were read; fewer than asked for at the end."""

    def write(self, data: memoryview, offset: int) -> int:
        """Write memory from an offset on, and return the bytes that were written."""

    def sync(self) -> None:
        """Return when all that was written is on disk."""

    def close(self) -> None:
        """Close the file, which no thread may use any more."""


class DirectFile:
    """A file that is read and written without the page cache, or where the file system refuses that, through it and
    dropped from it."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it for this user alone. Raises `OSError`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd, self._is_direct = os.open(path, flags | os.O_DIRECT, 0o600), True
        except OSError as error:
            if error.errno not in _REFUSES_DIRECT:
                raise
            self._fd, self._is_direct = os.open(path, flags, 0o600), False
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise OSError(errno.EINVAL, "not a regular file", str(path))

    def read(self, into: memoryview, offset: int) -> int:
        """See `File`."""
        count = os.preadv(self._fd, [into], offset)
        self._drop(offset, count)
        return count

    def write(self, data: memoryview, offset: int) -> int:
        """See `File`."""
        return os.pwrite(self._fd, data, offset)

    def sync(self) -> None:
        """See `File`."""
        os.fdatasync(self._fd)
        self._drop(0, 0)

    def close(self) -> None:
        """See `File`."""
        os.close(self._fd)

    def _drop(self, offset: int, count: int) -> None:
        if not self._is_direct:
            os.posix_fadvise(self._fd, offset, count, os.POSIX_FADV_DONTNEED)


class Staging:
    """The memory of one thread between disk and caches, aligned for direct I/O. It grows to the largest that was asked
    for: most threads never see an anchor."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def of(self, nbytes: int) -> memoryview:
        """Return memory of `nbytes`, which holds anything. Raises `OSError`."""
        if nbytes > len(self._memory):
            self._memory = memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return self._memory[:nbytes]
