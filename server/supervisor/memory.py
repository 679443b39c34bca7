"""The interface of the memory that a worker group shares. Each launch of a group gets its own memory."""

from collections.abc import Callable
from typing import Protocol


class SharedMemory(Protocol):
    """A memfd that workers inherit."""

    @property
    def fd(self) -> int:
        """The descriptor of the memory."""

    @property
    def nonce(self) -> int:
        """A number that workers receive separately from the memory, so that stale memory is noticed."""

    def close(self) -> None:
        """Close the descriptor."""


class RingSegment(SharedMemory, Protocol):
    """The ring's memory (`numaserve.shm_comm.segment.Segment`)."""

    def abort(self, reason: str) -> bool:
        """End every wait in the ring with an error. Return whether this was the first reason given."""


class MaskBoard(SharedMemory, Protocol):
    """The memory in which rank 0 finds the masks of a step (`numaserve.shm_comm.mask_board.MaskBoard`)."""

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row's bits."""

    def publish(self, step: int, row: int, state: int, bits: int = 0) -> None:
        """Publish the state of a row of a step to rank 0; the bits of a mask are copied from the address `bits`."""


class ProgressBoard(SharedMemory, Protocol):
    """The memory in which ranks show that they progress (`numaserve.shm_comm.progress_board.ProgressBoard`)."""

    def barriers(self, rank: int) -> int:
        """Return the number of barriers that the rank has passed."""

    def waiting(self, rank: int, threads: int) -> frozenset[int]:
        """Return the ids of the rank's first `threads` threads that wait for another thread or rank."""


RingFactory = Callable[[], RingSegment]
BoardFactory = Callable[[], MaskBoard]
ProgressFactory = Callable[[], ProgressBoard]
