"""Creation of a ring's segment, for the process that owns a group.

The segment is a memfd: it has no name in the file system, so nothing remains when every process of the group is killed,
and no container limit on /dev/shm applies. It reaches a worker only as a descriptor passed on purpose::

    segment = create_segment(world_size=2, lanes=43, slot_bytes=8 << 20)
    subprocess.Popen([...], pass_fds=[segment.fd])   # the number is the same in the child
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from types import TracebackType

from numaserve.shm_comm import _ring

MEMFD_NAME = "numaserve-ring"


class Segment:
    """The owner's handle of a segment. Workers attach with `Ring(fd, rank, nonce)`.

    Attributes:
        fd: descriptor of the memfd, close-on-exec.
        nonce: number that a worker must know to attach; a worker of an earlier group does not.
        nbytes: size of the segment in bytes. Memory is taken only when a part is touched.

    """

    def __init__(self, fd: int, nonce: int, nbytes: int) -> None:
        self.fd = fd
        self.nonce = nonce
        self.nbytes = nbytes

    def abort(self, reason: str) -> bool:
        """End every wait of every rank with `RingAborted`.

        Returns whether this was the first abort; only the first reason is stored, up to 231 bytes.
        """
        return _ring.abort_segment(self.fd, reason)

    def close(self) -> None:
        """Close the descriptor. The memory exists as long as a worker maps it. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def create_segment(world_size: int, lanes: int, slot_bytes: int) -> Segment:
    """Create a segment for one group.

    Args:
        world_size: number of ranks, 1..64.
        lanes: threads of a rank that take part, 1..1024; the smallest team of the group.
        slot_bytes: bytes of one rank's part of one slot, a multiple of 4096. Each rank has three.

    Raises:
        RingError: a size is out of bounds.
        OSError: the kernel refuses a memfd of this size.

    """
    nbytes = _ring.segment_bytes(world_size, lanes, slot_bytes)
    nonce = secrets.randbits(63)
    fd = create_memory(MEMFD_NAME, nbytes, lambda fd: _ring.format_segment(fd, world_size, lanes, slot_bytes, nonce))
    return Segment(fd, nonce, nbytes)


def create_memory(name: str, nbytes: int, fill: Callable[[int], None]) -> int:
    """Return a memfd of that size that cannot change any more, once `fill` was called with it. Raises OSError."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        # A worker relies on the size: a shrunk file would kill it with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        fill(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd
