"""Creation of a mask board, for the process that owns a group. See include/numaserve_masks.h."""

import os
import secrets

from numaserve.shm_comm import _ring
from numaserve.shm_comm.segment import create_memory

MEMFD_NAME = "numaserve-masks"


class MaskBoard:
    """The owner's end of a board. Rank 0 attaches with `Board(fd, nonce)`.

    Attributes:
        fd: descriptor of the memfd, close-on-exec.
        nonce: number that a worker must know to attach; a worker of an earlier group does not.
        row_bytes: bytes of a row's bits.

    """

    def __init__(self, fd: int, nonce: int) -> None:
        self._board = _ring.Board(fd, nonce)
        self.fd = fd
        self.nonce = nonce
        self.row_bytes = self._board.row_bytes

    def publish(self, step: int, row: int, state: int, bits: int = 0) -> None:
        """Publish a row as `_ring.Board.publish` does. Works after `close` too, when no process reads the board."""
        self._board.publish(step, row, state, bits)

    def close(self) -> None:
        """Close the descriptor. The memory exists until this object and all workers have released it. May be called
        twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create_mask_board(rows: int, vocabulary: int) -> MaskBoard:
    """Create a board for one group.

    Args:
        rows: number of rows, 1..65536; see `mask_rows`.
        vocabulary: number of token ids. Memory is taken only for rows that are used.

    Raises:
        RingError: a size is out of bounds.
        OSError: the kernel refuses a memfd of this size.

    """
    row_bytes = -(-vocabulary // 32) * 4
    nonce = secrets.randbits(63)
    nbytes = _ring.board_bytes(rows, row_bytes)
    fd = create_memory(MEMFD_NAME, nbytes, lambda fd: _ring.format_board(fd, rows, row_bytes, nonce))
    return MaskBoard(fd, nonce)
