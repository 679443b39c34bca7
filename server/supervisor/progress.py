"""A watch over answers that no longer come."""

from collections.abc import Callable

from numaserve.server.common.patience import PatientTimer


class ProgressWatch:
    """Calls `on_stall` when a step was sent and no answer of any kind arrived for `deadline_s` seconds, in which this
    process ran and read what there was (see `patience`).

    It is fed by the step loop itself, so that a worker that only answers pings does not count as alive. While
    nothing is in flight no timer runs: idle costs nothing. While steps come and go one timer is re-armed a few times a
    second, not once per step.
    """

    def __init__(self, deadline_s: float, on_stall: Callable[[], None]) -> None:
        self.deadline_s = deadline_s
        self._on_stall = on_stall
        self._timer = PatientTimer(self._stalled)
        self._outstanding = 0

    @property
    def waited_s(self) -> float:
        """Seconds of this process's presence since the last answer or the first question; 0 while none is due."""
        return self._timer.spent_s

    def expect(self, answers: int) -> None:
        """Note a step that `answers` workers must answer."""
        if not self._outstanding:
            self._timer.start(self.deadline_s)
        self._outstanding += answers

    def allow(self, deadline_s: float) -> None:
        """Let answers take so long from now on."""
        self.deadline_s = deadline_s
        self._timer.allow(deadline_s)

    def answered(self) -> None:
        """Note the answer of one worker to one step."""
        self._outstanding -= 1
        if self._outstanding:
            self.touch()
        else:
            self._timer.pause()

    def touch(self) -> None:
        """Note progress that completes no answer, such as a part of the weights that was loaded."""
        if self._outstanding:
            self._timer.start(self.deadline_s)

    def stop(self) -> None:
        """Watch no longer."""
        self._outstanding = 0
        self._timer.stop()

    def _stalled(self) -> None:
        self._outstanding = 0
        self._on_stall()
