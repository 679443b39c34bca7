"""The processor time that constraints may use next to the workers."""

import threading
import time
from collections import OrderedDict

from numaserve.server.engine.clock import Clock

_MOST_S = 0.03  # most that a client may save up
_A_TOKEN_S = 5e-4  # earned by each token: a mask takes some 50 microseconds, and seldom some milliseconds
_A_SECOND_S = 0.02  # earned by each second, of one core
_CHEAP_S = 1e-3  # work below this is not worth another process
_MOST_CLIENTS = 1024


class MatcherBudget:
    """A token bucket for each client, in seconds of processor time. Thread-safe."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # seconds and time; newest last

    def allows(self, client: str, seconds: float, tokens: int) -> bool:
        """Charge a client for a piece of work after `tokens`. Return whether its next piece may run in this process."""
        now = self._clock()
        with self._lock:
            left, since = self._left.pop(client, (_MOST_S, now))
            earned = tokens * _A_TOKEN_S + (now - since) * _A_SECOND_S
            left = max(-_MOST_S, min(_MOST_S, left + earned) - seconds)
            self._left[client] = left, now
            if len(self._left) > _MOST_CLIENTS:
                self._left.popitem(last=False)
        return left > 0.0 or seconds < _CHEAP_S
