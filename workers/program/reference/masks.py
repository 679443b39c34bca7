"""Where the reference finds the masks of a step."""

import time
from dataclasses import dataclass, field

from numaserve.shm_comm import Board
from numaserve.workers.program.reference.sampling import Allowed, allowed_tokens

_MASK, _FREE = 1, 2  # states of a row, as `Board.wait` tells them


@dataclass
class StepMasks:
    """The masks of one step; without a board there are none."""

    board: Board | None = None
    deadline_s: float = 0.0  # for all of them together, from the first that is asked for
    step_id: int = 0
    waited_ns: int = 0
    _limit: float | None = field(default=None, init=False)

    def wait_for(self, slot: int, vocabulary: int) -> tuple[Allowed | None, bool]:
        """The tokens that the sequence of a slot may have, None: all; and whether it is dropped instead."""
        if self.board is None:
            return None, True
        begin = time.monotonic()
        if self._limit is None:
            self._limit = begin + self.deadline_s
        state = self.board.wait(self.step_id, slot, max(0.0, self._limit - begin))
        self.waited_ns += round((time.monotonic() - begin) * 1e9)
        if state == _MASK:
            return allowed_tokens(self.board.bits(self.step_id, slot), vocabulary), False
        return None, state != _FREE
