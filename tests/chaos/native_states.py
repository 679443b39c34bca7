"""What a rank's native call is doing, read from the words of ring and mask board while it runs.

See `numaserve_ring_layout.h` and `numaserve_masks.h` for where they lie. The native call holds no lock of Python's, so
a thread of the same process can look.
"""

import mmap
import threading
import time
from collections.abc import Callable

from numaserve.shm_comm import Board, Ring
from numaserve.workers.interface.protocol import Launch

from tests.chaos.cells import Point

_PAGE = 4096
_LINE = 128
_PHASES = 1 << 18  # of a collective
# Of a step the last collective brings the tokens to all ranks, the one before it the logits to rank 0.
_LAST_TWO = 2


class NativeStates:
    """The states of one rank's native call."""

    def __init__(self, launch: Launch, ring: Ring, board: Board | None) -> None:
        self._ring = ring
        self._rank = launch.rank
        self._words = memoryview(mmap.mmap(launch.ring_fd, ring.nbytes, prot=mmap.PROT_READ)).cast("Q")
        self._lanes = [(ring.part_range(rank)[0] + _LINE) // 8 for rank in range(ring.world_size)]
        self._sleepers: list[int] = []
        if board is not None:
            stride = 2 * _LINE + -(-board.row_bytes // _LINE) * _LINE
            nbytes = _PAGE + -(-2 * board.rows * stride // _PAGE) * _PAGE
            self._masks = memoryview(mmap.mmap(launch.mask_fd, nbytes, prot=mmap.PROT_READ)).cast("Q")
            self._sleepers = [(_PAGE + row * stride + _LINE) // 8 for row in range(2 * board.rows)]
        self.collectives = 0  # of a step; known after the first one

    def count_collectives(self, before: int) -> None:
        """Learn from a step how many collectives there are in one; `before`: the ring's position at its begin."""
        self.collectives = self._ring.position - before

    def _arrived(self, rank: int) -> int:
        """Collectives at which a rank has arrived."""
        return (self._words[self._lanes[rank]] + _PHASES - 1) // _PHASES

    def holds(self, point: Point, begin: int) -> bool:
        """Whether the call that began at the ring's position `begin` is at `point` now."""
        if point == Point.MASK_WAIT:
            return any(self._masks[at] & 0xFFFFFFFF for at in self._sleepers)
        arrived, done = self._arrived(self._rank), self._words[self._lanes[self._rank] + _LINE // 8]
        of_logits = begin + self.collectives - _LAST_TWO
        if point == Point.COLLECTIVE:
            return done < arrived <= of_logits
        all_there = all(self._arrived(rank) > of_logits for rank in range(len(self._lanes)))
        return point == Point.SAMPLING and all_there and arrived == of_logits + 1


class Watch:
    """Looks at the states from a thread while a native call runs, and acts once at the first that is `point`."""

    def __init__(self, states: NativeStates, point: Point, begin: int, act: Callable[[], None]) -> None:
        self._states, self._point, self._begin, self._act = states, point, begin, act
        self._over = False
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()

    def _look(self) -> None:
        while not self._over:
            if self._states.holds(self._point, self._begin):
                self._act()
                return
            time.sleep(0)
