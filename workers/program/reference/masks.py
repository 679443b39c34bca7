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
    slots: int = 0  # rows of the board that those of sequences without drafts are
    waited_ns: int = 0
    _limit: float | None = field(default=None, init=False)

    def wait_for(self, slot: int, behind: int, vocabulary: int) -> tuple[Allowed | None, bool]:
        """The tokens that the sequence of a slot may have behind so many drafts, None: all; and whether it is dropped
        instead."""
        if self.board is None:
            return None, True
        begin, row = time.monotonic(), slot + behind * self.slots
        if self._limit is None:
            self._limit = begin + self.deadline_s
        state = self.board.wait(self.step_id, row, max(0.0, self._limit - begin))
        self.waited_ns += round((time.monotonic() - begin) * 1e9)
        if state == _MASK:
            return allowed_tokens(self.board.bits(self.step_id, row), vocabulary), False
        return None, state != _FREE
