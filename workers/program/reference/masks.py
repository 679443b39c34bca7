"""The masks of a step for the reference backend."""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from numaserve.shm_comm import Board
from numaserve.workers.program.reference.sampling import Allowed, allowed_tokens

_NONE, _MASK, _DROP = 0, 1, 3  # states of a row, as `Board.wait` returns them
_WAITS = 5  # a step waits for masks at most this part of the time that it has taken until then


class Mask(NamedTuple):
    """The mask of a row: the tokens that it allows, None: all; or that it says not to go on, or was not there."""

    allowed: Allowed | None = None
    dropped: bool = False
    late: bool = False


@dataclass
class StepMasks:
    """The masks of one step; without a board there are none."""

    board: Board | None = None
    grace_s: float = 0.0  # the least that the step waits for all of them together
    step_id: int = 0
    slots: int = 0  # rows of the board that those of sequences without drafts are
    begun: float = field(default_factory=time.monotonic)
    waited_ns: int = 0
    _limit: float | None = field(default=None, init=False)

    def wait_for(self, slot: int, behind: int, vocabulary: int) -> Mask:
        """Return the mask of the sequence of a slot after a number of draft tokens."""
        if self.board is None:
            return Mask(dropped=True)
        begin, row = time.monotonic(), slot + behind * self.slots
        if self._limit is None:
            self._limit = begin + max(self.grace_s, (begin - self.begun) / _WAITS)
        state = self.board.wait(self.step_id, row, max(0.0, self._limit - begin))
        self.waited_ns += round((time.monotonic() - begin) * 1e9)
        if state == _MASK:
            return Mask(allowed_tokens(self.board.bits(self.step_id, row), vocabulary))
        return Mask(dropped=state == _DROP, late=state == _NONE)
