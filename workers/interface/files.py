"""Opens files that others have written: the files of a model, and files that an operator names.

Only regular files within the size limit of their kind are read. A link to /dev/zero has no end, and a FIFO has none
before a process writes to it. A sparse file of a terabyte takes no disk space. Links to regular files are followed: the
hub's cache consists of links.

Every process of the server uses this module, so it imports nothing from the server but the error type.
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

# The size limits in bytes, by kind of file. Known models have a tokenizer.json of up to 35 MB.
CONFIG_BYTES = 16 << 20
TOKENIZER_BYTES = 128 << 20
RANKS_BYTES = 8 << 20  # a tiktoken.model; known ones have up to 4 MB, and all ways to cut a token are looked up
INDEX_BYTES = 64 << 20  # the names of some hundred thousand tensors
TEMPLATE_BYTES = 4 << 20
SETTINGS_BYTES = 1 << 20  # files that an operator writes by hand

# Without O_NONBLOCK, opening a FIFO would block until a process writes to it. O_NONBLOCK has no effect on regular
# files.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def is_there(path: Path) -> bool:
    """Return whether a path of this name exists. A dangling link counts: its creator meant a file."""
    return os.path.lexists(path)


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open the regular file at `path`. Raises `OperatorError` for anything else, and for an `OSError` within."""
    try:
        with os.fdopen(os.open(path, _FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OperatorError(f"{path}: not a regular file")
            yield file
    except OSError as error:
        # The system's own message is about opening a socket, which would mislead.
        reason = "the path is not a regular file" if error.errno == errno.ENXIO else error.strerror or error
        raise OperatorError(f"{path}: cannot be read ({reason})") from error


def map_file(file: BinaryIO) -> mmap.mmap:
    """Map all of an open file, without reading it. Raises `ValueError` for an empty file."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def read_file(path: Path, limit: int) -> bytes:
    """Return the bytes of the regular file at `path`.

    Raises `OperatorError` where the file cannot be read or has more than `limit` bytes. Too large a file is not read.
    """
    with open_file(path) as file:
        # A file of /proc reports size 0.
        is_larger = os.fstat(file.fileno()).st_size > limit
        content = b"" if is_larger else file.read(limit + 1)
    if is_larger or len(content) > limit:
        raise OperatorError(f"{path}: larger than the limit of {limit >> 20} MiB for this kind of file")
    return content


def read_text(path: Path, limit: int) -> str:
    """Return the text of the regular file at `path`. Raises `OperatorError` like `read_file`, and if it is not
    UTF-8."""
    try:
        return read_file(path, limit).decode()
    except UnicodeDecodeError as error:
        raise OperatorError(f"{path}: not UTF-8 text ({error})") from error


def parse_json(content: bytes | str) -> Any:
    """Parse JSON. Raises `ValueError`, also where an object has a name twice, and `RecursionError`."""
    return json.loads(content, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of `pairs`. Raises `ValueError` for a repeated name, since readers disagree about its value:
    one may check the first and another use the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        double, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the name {double[:100]!r} twice")
    return found


def read_json(path: Path, limit: int = CONFIG_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file. Raises `OperatorError` like `read_file`, and for any other content."""
    try:
        value = parse_json(read_file(path, limit))
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{path}: not valid JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise OperatorError(f"{path}: not a JSON object; fetch it again")
    return value
