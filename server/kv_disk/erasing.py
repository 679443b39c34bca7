"""The erasure of what lies in the ranks' files without an owner: dropped nodes, and nodes of removed keys."""

import ctypes
import errno
import os
from collections.abc import Collection, Iterator

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of linux/falloc.h
_CHUNK_BYTES = 1 << 20
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def erase_records(fd: int, record_bytes: int, slots: Collection[int]) -> None:
    """Erase the records in these slots of a file. Raises `OSError`."""
    size = os.fstat(fd).st_size
    for slot in slots:
        offset = slot * record_bytes
        if offset < size:
            _erase(fd, offset, min(record_bytes, size - offset))
    os.fsync(fd)


def keep_records(fd: int, record_bytes: int, num_slots: int, kept: Collection[int]) -> None:
    """Erase all of a file of records but those in the slots that are `kept`. Raises `OSError`.

    The slots that were dropped this time are not enough: earlier ones, which were not used again, hold prompts too.
    """
    size = min(os.fstat(fd).st_size, num_slots * record_bytes)
    os.ftruncate(fd, size)
    for first, end in free_runs(kept, -(-size // record_bytes)):
        offset = first * record_bytes
        _erase(fd, offset, min(end * record_bytes, size) - offset)
    os.fsync(fd)


def free_runs(kept: Collection[int], num_slots: int) -> Iterator[tuple[int, int]]:
    """Yield the first slot of each run of slots that are not `kept`, and the slot after it."""
    # A map of bytes: to sort a million slots would hold the interpreter's lock for half a second.
    is_kept = bytearray(num_slots)
    for slot in kept:
        if slot < num_slots:
            is_kept[slot] = 1
    first = is_kept.find(0)
    while first >= 0:
        end = is_kept.find(1, first)
        yield first, num_slots if end < 0 else end
        first = -1 if end < 0 else is_kept.find(0, end)


def _erase(fd: int, offset: int, nbytes: int) -> None:
    """Give a range back to the file system, which reads as zeros from then on; or write zeros where it cannot."""
    code = _punch(fd, offset, nbytes)
    if code and code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code))
    if code:
        zeros, end = bytes(_CHUNK_BYTES), offset + nbytes
        while offset < end:
            offset += os.pwrite(fd, zeros[: end - offset], offset)


def _punch(fd: int, offset: int, nbytes: int) -> int:
    """Punch a hole into a file, and return the number of the error; 0: there was none."""
    failed = _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, nbytes)
    return ctypes.get_errno() if failed else 0
