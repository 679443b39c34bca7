"""What a run and the workers tell each other: a cell of shared memory for each rank.

The run writes an order into a cell: at which point, the how many-th time, what is to happen. The worker of that rank
carries it out, in whichever life it comes to it, and says so. A word has one writer, and the number of an order is
written last.
"""

import ctypes
import mmap
from enum import IntEnum
from pathlib import Path


class Point(IntEnum):
    """Where a worker can be when something happens to it."""

    RESTART = 1  # started again, and not yet told what to load
    LOADING = 2  # amid the weights
    PREFILL = 3  # before the native call of a step with several tokens of a sequence
    DECODE = 4  # before that of a step with one token of a sequence, and another to come
    COLLECTIVE = 5  # in the native call, at a sum over the ranks
    SAMPLING = 6  # in it, at the sampling of rank 0
    MASK_WAIT = 7  # in it, where rank 0 sleeps until a mask comes


class Action(IntEnum):
    """What a worker does to itself, or has done to it."""

    KILL = 1  # SIGKILL
    CRASH = 2  # memory that native code uses is taken away: a true SIGSEGV in it
    STOP = 3  # SIGSTOP: it hangs
    ABORT = 4  # it aborts the ring
    SLOW = 5  # it sleeps, for less than the deadline of a step
    LOOP = 6  # it computes without an end: it hangs, and uses processor time


class Cell(ctypes.Structure):
    """A rank's cell."""

    _fields_ = [
        # The run's.
        ("order", ctypes.c_uint64),
        ("point", ctypes.c_uint64),
        ("action", ctypes.c_uint64),
        ("times", ctypes.c_uint64),  # at the how many-th time, from 1
        ("slow_ms", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),  # the longest file that the worker may write; 0: any
        # The worker's.
        ("done", ctypes.c_uint64),  # the last order that was carried out
        ("lives", ctypes.c_uint64),
        ("pid", ctypes.c_uint64),
        ("ready", ctypes.c_uint64),  # the life that has loaded
        ("steps", ctypes.c_uint64),  # answered since that
    ]


class Cells:
    """The cells of all ranks, in a file that the processes map."""

    def __init__(self, path: Path, ranks: int) -> None:
        size = ctypes.sizeof(Cell) * ranks
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self.ranks = (Cell * ranks).from_buffer(self._memory)

    def command(self, rank: int, point: Point, action: Action, *, times: int = 1, slow_ms: int = 0) -> int:
        """Write an order, in place of the last one; returns its number."""
        cell = self.ranks[rank]
        number = cell.order + 1
        cell.point, cell.action, cell.times, cell.slow_ms = point, action, times, slow_ms
        cell.order = number
        return number

    def withdraw(self, rank: int) -> None:
        """Take back an order that was not carried out."""
        self.ranks[rank].point = 0
