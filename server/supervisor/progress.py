"""A watchdog for answers of the workers."""

from collections.abc import Callable

from numaserve.server.common.patience import PatientTimer


class ProgressWatch:
    """Calls `on_stall` when a step was sent and no answer of any kind arrived for `deadline_s` seconds of run time. Run
    time excludes time in which this process did not run or read its input (see `patience`).

    The step loop itself feeds the watchdog, so a worker that only answers pings does not count as alive. While nothing
    is in flight no timer runs: idle costs nothing. While steps come and go one timer is re-armed a few times a second,
    not once per step.
    """

    def __init__(self, deadline_s: float, on_stall: Callable[[], None]) -> None:
        self.deadline_s = deadline_s
        self._on_stall = on_stall
        self._timer = PatientTimer(self._stalled)
        self._outstanding = 0

    @property
    def waited_s(self) -> float:
        """The seconds of run time since the last answer or the first request; 0 while no answer is due."""
        return self._timer.spent_s

    def expect(self, answers: int) -> None:
        """Note a step that `answers` workers must answer."""
        if not self._outstanding:
            self._timer.start(self.deadline_s)
        self._outstanding += answers

    def allow(self, deadline_s: float) -> None:
        """Set the deadline from now on."""
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
        """Note progress that completes no answer, such as a loaded part of the weights."""
        if self._outstanding:
            self._timer.start(self.deadline_s)

    def stop(self) -> None:
        """Stop watching."""
        self._outstanding = 0
        self._timer.stop()

    def _stalled(self) -> None:
        self._outstanding = 0
        self._on_stall()
