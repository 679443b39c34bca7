"""The native module of the ring, the mask board and the progress board. Arrays must be C-contiguous and in processor
memory; every collective releases the GIL."""

from typing import Any

import numpy as np
import numpy.typing as npt

class RingError(RuntimeError):
    """A segment that does not match the launch, or a collective that could not be finished."""

class RingAborted(RingError):
    """A peer or the supervisor aborted the ring while this rank waited."""

class RingDeadline(RingError):
    """A peer did not arrive within the deadline; the message names the peer."""

class RingBase:
    """The C++ class numaserve::ring::Ring, which other native modules accept."""

class Ring(RingBase):
    """A rank's end of the ring. Keep it alive as long as native code uses it."""

    def __init__(self, fd: int, rank: int, nonce: int, world_size: int | None = None) -> None:
        """Map the segment and take `rank`. Raises RingError when the segment, nonce, rank or world size do not fit."""
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def base_address(self) -> int: ...
    @property
    def position(self) -> int:
        """Number of the next collective, equal on all ranks between collectives."""
    @property
    def aborted(self) -> bool: ...
    def part_range(self, rank: int) -> tuple[int, int]:
        """Offset and length in bytes of a rank's part, page-aligned: bind base_address + offset to the rank's node."""
    def prefault(self) -> None:
        """Touch the slots of this rank before the first collective. Call it after the part was bound."""
    def set_deadline(self, seconds: float) -> None:
        """Set the deadline of each wait, in seconds during which this process runs."""
    def share_cores(self) -> None:
        """Sleep at every wait. For ranks that are not pinned to cores; all ranks of a group must call it."""
    def leave_verdict(self, lifeline: int) -> None:
        """Wait for other ranks beyond any deadline while the front end holds the write end of `lifeline`, a pipe. It
        judges the ranks, and aborts the ring if one hangs."""
    def beat(self) -> None:
        """Record that this rank makes progress; shown by ring-stat."""
    def abort(self, reason: str) -> None:
        """End every wait of every rank with RingAborted."""
    def wait_ns(self, lane: int) -> int:
        """Nanoseconds that a lane has spent waiting for its peers since it attached."""
    def all_reduce(self, array: npt.NDArray[np.float32], one_shot_bytes: int | None = None) -> None:
        """Sum `array` (float32) over the ranks in rank order, in place; the same bits on every rank.

        Up to `one_shot_bytes` bytes, every rank sums the whole array. Above, each rank sums a share, and shares are
        gathered.
        """
    def all_gather(self, mine: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Write the ranks' `mine`, one after the other in rank order, to `out`."""
    def broadcast(self, data: npt.NDArray[Any], root: int) -> None:
        """Overwrite `data` with the `data` of rank `root`."""
    def barrier(self) -> None:
        """Return when every rank has called it."""

class RankSnapshot:
    """The state of one rank, read from outside. Epochs count collectives; min and max are over the lanes."""

    @property
    def pid(self) -> int: ...
    @property
    def arrived_min(self) -> int: ...
    @property
    def arrived_max(self) -> int: ...
    @property
    def done_min(self) -> int: ...
    @property
    def done_max(self) -> int: ...
    @property
    def waits(self) -> int: ...
    @property
    def wait_seconds(self) -> float: ...
    @property
    def wait_share(self) -> float: ...
    @property
    def beat_age_seconds(self) -> float: ...

class RingSnapshot:
    """The state of a ring, read from outside."""

    @property
    def world_size(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def aborted(self) -> bool: ...
    @property
    def abort_reason(self) -> str: ...
    @property
    def ranks(self) -> list[RankSnapshot]: ...

def inspect(fd: int) -> RingSnapshot: ...
def segment_bytes(world_size: int, lanes: int, slot_bytes: int) -> int: ...
def format_segment(fd: int, world_size: int, lanes: int, slot_bytes: int, nonce: int) -> None: ...
def abort_segment(fd: int, reason: str) -> bool: ...

class BoardBase:
    """The C++ class numaserve::masks::Board, which other native modules accept."""

class Board(BoardBase):
    """An end of the mask board: the front end publishes, rank 0 waits. Keep it alive as long as native code uses it."""

    def __init__(self, fd: int, nonce: int) -> None:
        """Map the board. Raises RingError when the board belongs to another launch."""
    @property
    def rows(self) -> int: ...
    @property
    def row_bytes(self) -> int:
        """Bytes of a row's bits."""
    def publish(self, step: int, row: int, state: int, bits: int = 0) -> None:
        """Publish the state of a row in a step. 1: a mask, whose `row_bytes` bytes are copied from the address `bits`.
        2: every token is allowed. 3: the sequence is to be dropped.

        Raises IndexError for a row out of range and ValueError for an unknown state.
        """
    def wait(self, step: int, row: int, seconds: float) -> int:
        """Return the state of a row in a step; 0 when none was published within `seconds`."""
    def bits(self, step: int, row: int) -> bytes:
        """The bits of a row, `row_bytes` of them; bit i of the little-endian uint32 words is token i's."""

def board_bytes(rows: int, row_bytes: int) -> int: ...
def format_board(fd: int, rows: int, row_bytes: int, nonce: int) -> None: ...

class ProgressBase:
    """The C++ class numaserve::progress::Board, which other native modules accept."""

class Progress(ProgressBase):
    """An end of the progress board: teams record barriers and waiting threads, and the front end reads them. Keep it
    alive as long as native code uses it."""

    def __init__(self, fd: int, nonce: int) -> None:
        """Map the board. Raises RingError when the board belongs to another launch."""
    @property
    def world_size(self) -> int: ...
    def barriers(self, rank: int) -> int:
        """The barriers that the rank's team has passed. Raises IndexError for a rank out of range."""
    def waiting(self, rank: int, threads: int) -> list[int]:
        """The ids of those of the first `threads` threads that wait for another thread or rank."""

def progress_bytes(world_size: int) -> int: ...
def format_progress(fd: int, world_size: int, nonce: int) -> None: ...
