"""The digest of a checkpoint's content, which survives a copy, and is not computed again at each start.

The cache of packed weights identifies files by inode and times instead: packing them again takes as long as reading
them. Cached prefixes are worth more than that.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from numaserve.workers.interface.files import open_file

_MEMO_NAME = "contents.json"
_NEW_NAME = "contents.new"
_MEMO_BYTES = 1 << 22
_CHUNK_BYTES = 1 << 20
_SETTLED_NS = 2_000_000_000  # no file system in use has coarser times
_TELLING_BYTES = 1 << 33  # of progress in the log: some seconds of reading
_GIB = 1 << 30

_log = logging.getLogger(__name__)


class Stopped(Exception):
    """The server ends before the content is known."""


class _Known(msgspec.Struct, frozen=True, array_like=True):
    """A file whose content is known. Programs cannot set its time of change."""

    path: str
    nbytes: int
    inode: int
    mtime_ns: int
    ctime_ns: int


class _Memo(msgspec.Struct):
    """The digests of files, as they are stored in the folder."""

    files: list[tuple[_Known, bytes]] = []


def contents_digest(files: Sequence[Path], folder: int, *, is_stopped: Callable[[], bool] = lambda: False) -> bytes:
    """Return a digest of the contents of files, in the order of their names.

    The digest of each file is remembered in the open `folder`. Raises `OperatorError` for a file that cannot be read,
    and `Stopped`.
    """
    memo = dict(_read_memo(folder).files)
    found: dict[_Known, bytes] = {}
    progress = _Progress(sum(path.stat().st_size for path in files if _identify(path) not in memo))
    whole = hashlib.sha256()
    for path in sorted(files, key=lambda each: each.name):
        known, now_ns = _identify(path), time.time_ns()
        digest = memo.get(known) or _hash(path, progress, is_stopped)
        # The file is not changed any more, or a change would show in its times.
        if known in memo or (now_ns - known.ctime_ns > _SETTLED_NS and _identify(path) == known):
            found[known] = digest
        whole.update(digest)
    if found != memo:
        _write_memo(folder, _Memo(list(found.items())))
    return whole.digest()


class _Progress:
    """Log lines about files that take long."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def add(self, nbytes: int) -> None:
        before, self._done = self._done, self._done + nbytes
        if before // _TELLING_BYTES < self._done // _TELLING_BYTES:
            _log.info(
                "read %.0f of %.0f GiB of the checkpoint for the digest of its content",
                *(self._done / _GIB, self._total / _GIB),
            )


def _hash(path: Path, progress: _Progress, is_stopped: Callable[[], bool]) -> bytes:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with open_file(path) as file:
        while count := file.readinto(buffer):  # type: ignore[attr-defined]
            digest.update(buffer[:count])  # without the interpreter's lock
            progress.add(count)
            if is_stopped():
                raise Stopped
    return digest.digest()


def _identify(path: Path) -> _Known:
    info = path.stat()
    return _Known(str(path.resolve()), info.st_size, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)


def _read_memo(folder: int) -> _Memo:
    """Return the stored digests; none if they cannot be read: the files are read again then."""
    try:
        fd = os.open(_MEMO_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            return msgspec.json.decode(file.read(_MEMO_BYTES), type=_Memo)
    except (OSError, msgspec.MsgspecError):
        return _Memo()


def _write_memo(folder: int, memo: _Memo) -> None:
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(_NEW_NAME, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(msgspec.json.encode(memo))
        os.rename(_NEW_NAME, _MEMO_NAME, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        _log.warning("the digests of the checkpoint cannot be stored (%s)", error.strerror)
