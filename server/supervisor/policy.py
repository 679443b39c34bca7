"""The policy that ends restarts of a failing worker group."""

from collections import deque

from numaserve.server.common.death import Cause

MAX_FAILURES = 3
WINDOW_S = 60.0
_FIRST_PAUSE_S = 0.5
_LONGER = 4  # factor from one pause to the next


class RestartPolicy:
    """Gives up after three unexplained failures within a minute without an answered step between them. It also gives up
    after three starts in a row that never became ready.

    Failures that a request explains do not count: that request will be found. A failure after an answered step also
    clears the failures before it: workers that serve from time to time are better than none. The second rule is for
    models that take longer than twenty seconds to load: with the first rule alone they would be loaded indefinitely.
    """

    def __init__(self, max_failures: int = MAX_FAILURES, window_s: float = WINDOW_S) -> None:
        self._max_failures = max_failures
        self._window_s = window_s
        self._times: deque[float] = deque(maxlen=max_failures)
        self._never_ready = 0

    @property
    def pause_s(self) -> float:
        """The seconds to wait before the next start; 0 unless the last start failed.

        A missing resource, such as descriptors or memory, may be available a moment later. Without a pause, three
        attempts would pass within milliseconds.
        """
        return _FIRST_PAUSE_S * _LONGER ** (self._never_ready - 1) if self._never_ready else 0.0

    def failed(self, now: float, *, was_ready: bool, cause: Cause = Cause.UNKNOWN) -> bool:
        """Note a failure of the group at the monotonic time `now`. Return whether to give up."""
        if cause is Cause.PASSING:
            self._times.clear()
        if cause is not Cause.UNKNOWN:
            self._never_ready = 0
            return False
        self._times.append(now)
        self._never_ready = 0 if was_ready else self._never_ready + 1
        in_window = len(self._times) == self._max_failures and now - self._times[0] <= self._window_s
        return in_window or self._never_ready >= self._max_failures
