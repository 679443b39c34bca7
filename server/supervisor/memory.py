"""The memory that a group shares, as the front end sees it. Each life of a group gets its own."""

from collections.abc import Callable
from typing import Protocol


class SharedMemory(Protocol):
    """A memfd that workers inherit."""

    @property
    def fd(self) -> int:
        """Descriptor of the memory."""

    @property
    def nonce(self) -> int:
        """A number that workers get apart from the memory, so that a stale one is noticed."""

    def close(self) -> None:
        """Close the descriptor."""


class RingSegment(SharedMemory, Protocol):
    """The ring's memory (`numaserve.shm_comm.segment.Segment`)."""

    def abort(self, reason: str) -> bool:
        """End every wait in the ring with an error. Returns whether this was the first reason given."""


class MaskBoard(SharedMemory, Protocol):
    """Where rank 0 finds the masks of a step (`numaserve.shm_comm.mask_board.MaskBoard`)."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's bits."""

    def publish(self, step: int, row: int, state: int, bits: int = 0) -> None:
        """Tell rank 0 the state of a row in a step; the bits of a mask are copied from the address `bits`."""


RingFactory = Callable[[], RingSegment]
BoardFactory = Callable[[], MaskBoard]
