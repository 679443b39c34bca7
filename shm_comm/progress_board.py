"""Creation of a progress board, for the process that owns a group. See include/numaserve_progress.h."""

import os
import secrets

from numaserve.shm_comm import _ring
from numaserve.shm_comm.segment import create_memory

MEMFD_NAME = "numaserve-progress"


class ProgressBoard:
    """The owner's end of a board. Each rank attaches with `Progress(fd, nonce)`.

    Attributes:
        fd: descriptor of the memfd, close-on-exec.
        nonce: number that a worker must know to attach; a worker of an earlier group does not.

    """

    def __init__(self, fd: int, nonce: int) -> None:
        self._board = _ring.Progress(fd, nonce)
        self.fd = fd
        self.nonce = nonce

    def barriers(self, rank: int) -> int:
        """Return the number of barriers that the rank has passed."""
        return self._board.barriers(rank)

    def waiting(self, rank: int, threads: int) -> frozenset[int]:
        """Return the ids of the rank's first `threads` threads that wait for another thread or rank."""
        return frozenset(self._board.waiting(rank, threads))

    def close(self) -> None:
        """Close the descriptor. The memory exists until this object and all workers have released it. May be called
        twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create_progress_board(world_size: int) -> ProgressBoard:
    """Create a board for a group of `world_size` ranks, 1..64.

    Raises:
        RingError: the number is out of bounds.
        OSError: the kernel refuses a memfd of this size.

    """
    nonce = secrets.randbits(63)
    nbytes = _ring.progress_bytes(world_size)
    fd = create_memory(MEMFD_NAME, nbytes, lambda fd: _ring.format_progress(fd, world_size, nonce))
    return ProgressBoard(fd, nonce)
