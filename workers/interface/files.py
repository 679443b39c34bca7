"""Opens what others have written: the files of a model, and those that an operator names.

Regular files only, and no larger than their kind is. A link to /dev/zero has no end, a FIFO has none before somebody
writes to it, and a sparse file of a terabyte takes no room where it lies. Links to regular files are followed: the
hub's cache is made of them.

Every process of the server uses this, so it imports nothing of it but the error type.
"""

import errno
import json
import mmap
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from numaserve.workers.interface.errors import OperatorError

# The most bytes that are read of a file of some kind. Models are known whose tokenizer.json has 35 MB.
CONFIG_BYTES = 16 << 20
TOKENIZER_BYTES = 128 << 20
INDEX_BYTES = 64 << 20  # the names of some hundred thousand tensors
TEMPLATE_BYTES = 4 << 20
SETTINGS_BYTES = 1 << 20  # files that an operator writes by hand

# Without O_NONBLOCK a FIFO would hold its reader until somebody writes. A regular file does not know the difference.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def is_there(path: Path) -> bool:
    """Whether something has this name. A link that leads nowhere counts: who put it there meant a file."""
    return os.path.lexists(path)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The regular file at `path`. Raises `OperatorError` for anything else, and for an `OSError` within."""
    try:
        with os.fdopen(os.open(path, _FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OperatorError(f"{path}: not a regular file")
            yield file
    except OSError as error:
        # The system's own message about opening a socket would help nobody.
        reason = "the path is not a regular file" if error.errno == errno.ENXIO else error.strerror or error
        raise OperatorError(f"{path}: cannot be read ({reason})") from error


def map_file(file: BinaryIO) -> mmap.mmap:
    """All of an open file, mapped and not read. Raises `ValueError` for an empty one."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def read_file(path: Path, limit: int) -> bytes:
    """Return the bytes of the regular file at `path`.

    Raises `OperatorError` where the file cannot be read or has more than `limit` bytes. Too large a file is not read.
    """
    with open_file(path) as file:
        # A file of /proc says that it has none.
        is_larger = os.fstat(file.fileno()).st_size > limit
        content = b"" if is_larger else file.read(limit + 1)
    if is_larger or len(content) > limit:
        raise OperatorError(f"{path}: larger than the limit of {limit >> 20} MiB for this kind of file")
    return content


def read_text(path: Path, limit: int) -> str:
    """The text of the regular file at `path`. Raises `OperatorError` where it is not UTF-8, too."""
    try:
        return read_file(path, limit).decode()
    except UnicodeDecodeError as error:
        raise OperatorError(f"{path}: not UTF-8 text ({error})") from error


def parse_json(content: bytes | str) -> Any:
    """The value that JSON says. Raises `ValueError`, where an object has a name twice too, and `RecursionError`."""
    return json.loads(content, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of `pairs`. Readers disagree about two values of one name: one may check the first and another
    use the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        double, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the name {double[:100]!r} twice")
    return found


def read_json(path: Path, limit: int = CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object that it holds. Raises `OperatorError` where it holds something else, too."""
    try:
        value = parse_json(read_file(path, limit))
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{path}: not valid JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise OperatorError(f"{path}: not a JSON object; fetch it again")
    return value
