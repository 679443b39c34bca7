"""Small files that the operator names, or that come with a model."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from numaserve.workers.errors import OperatorError


def read_text_file(path: Path, what: str, max_bytes: int) -> str:
    """The text of the file at `path`, which is `what` in the errors.

    Raises `OperatorError` for what cannot be read, is not UTF-8, is no regular file (a FIFO or /dev/zero would be read
    without end) or is larger than `max_bytes`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # to open a FIFO would wait for a writer
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OperatorError(f"{what} {path} is not a regular file")
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise OperatorError(f"cannot read {what} {path}: {error.strerror}") from None
    if len(content) > max_bytes:
        raise OperatorError(f"{what} {path} is larger than {max_bytes >> 10} KiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OperatorError(f"{what} {path} is not UTF-8: {error.reason} at byte {error.start}") from None
