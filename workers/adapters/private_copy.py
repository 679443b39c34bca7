"""Private copies of files that others may change while they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import open_file

_PIECE = 1 << 20


@dataclass(frozen=True)
class PrivateCopy:
    """The path of a copy in memory, which lasts as long as its context, and the SHA-256 of its contents."""

    path: Path
    digest: str
    nbytes: int


@contextmanager
def private_copy(path: Path, limit: int) -> Iterator[PrivateCopy]:
    """Copy the regular file at `path`, of at most `limit` bytes, into memory.

    A mapped file that is shortened meanwhile ends the process that reads it, and one that is written meanwhile has
    other contents than those that were checked. A checkpoint is of the operator; an adapter may be replaced by the job
    that trains it.

    Raises `OperatorError` for a file that cannot be read, or has more bytes.
    """
    digest, done = hashlib.sha256(), 0
    fd = os.memfd_create("adapter", os.MFD_CLOEXEC)
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise OperatorError(
                    f"{path}: has {os.fstat(file.fileno()).st_size} bytes, and an adapter of this model with the "
                    f"largest rank has at most {limit}; check that the file is an adapter of this model, or raise "
                    "max_lora_rank"
                )
            while piece := file.read(min(_PIECE, limit + 1 - done)):
                digest.update(piece)
                os.write(fd, piece)
                done += len(piece)
        if done > limit:
            raise OperatorError(f"{path}: grew while it was read; load the adapter again when it is complete")
        copy = PrivateCopy(Path(f"/proc/self/fd/{fd}"), digest.hexdigest(), done)
        try:
            yield copy
        except OperatorError as error:  # of a reader, which knows the copy alone
            raise OperatorError(str(error).replace(str(copy.path), str(path))) from error
    finally:
        os.close(fd)
