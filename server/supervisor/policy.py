"""The rule that ends restarting."""

from collections import deque

from numaserve.server.common.death import Cause

MAX_FAILURES = 3
WINDOW_S = 60.0
_FIRST_PAUSE_S = 0.5
_LONGER = 4  # times the pause before


class RestartPolicy:
    """Gives up after three failures within a minute that nothing explains, without a step answered between them, and
    after three starts in a row that never became ready.

    Those that a request explains do not count: it will be found. Those after a step that was answered forgive the ones
    before, too: workers that serve from time to time are better than none. The second rule is for models that take
    longer than twenty seconds to load: with the first one alone they would be loaded for ever.
    """

    def __init__(self, max_failures: int = MAX_FAILURES, window_s: float = WINDOW_S) -> None:
        self._max_failures = max_failures
        self._window_s = window_s
        self._times: deque[float] = deque(maxlen=max_failures)
        self._never_ready = 0

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next start: none unless the last one failed.

        What a start lacks, descriptors or memory above all, may be there a moment later. Without a pause three tries
        would pass within milliseconds.
        """
        return _FIRST_PAUSE_S * _LONGER ** (self._never_ready - 1) if self._never_ready else 0.0

    def failed(self, now: float, *, was_ready: bool, cause: Cause = Cause.UNKNOWN) -> bool:
        """Note a failure of the group at the monotonic time `now`. Returns whether it is to be given up."""
        if cause is Cause.PASSING:
            self._times.clear()
        if cause is not Cause.UNKNOWN:
            self._never_ready = 0
            return False
        self._times.append(now)
        self._never_ready = 0 if was_ready else self._never_ready + 1
        in_window = len(self._times) == self._max_failures and now - self._times[0] <= self._window_s
        return in_window or self._never_ready >= self._max_failures
