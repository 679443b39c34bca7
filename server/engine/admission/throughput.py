"""The recent throughput, from which the retry time of refused clients follows."""

import math
from collections import deque

_REMEMBERED = 64
_MAX_SECONDS = 60


class Throughput:
    """Records when the last requests ended (monotonic seconds) and how many tokens were computed for each."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def ended(self, now: float, tokens: int) -> None:
        """Record the end of a request at the monotonic time `now`."""
        self._ends.append((now, tokens))

    def retry_after(self, waiting: int, now: float) -> int:
        """Return whole seconds, 1 to 60, until about half of `waiting` tokens are computed at the recent pace.

        If clients only came back when the queue is empty, the server would be idle at that moment: hence half.
        """
        done = sum(tokens for _, tokens in self._ends)
        if len(self._ends) < 2 or not done:
            return 1
        seconds_each = (now - self._ends[0][0]) / done
        return min(_MAX_SECONDS, max(1, math.ceil(seconds_each * waiting / 2)))
