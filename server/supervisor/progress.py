"""A watchdog for answers of the workers."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from numaserve.server.common.patience import PatientTimer
from numaserve.server.supervisor.judge import Judge, RankLook

_LATE_S = 1.0  # processor times are read only of ranks that are later than this: reading takes milliseconds


@dataclass(frozen=True)
class Witness:
    """The view of a watchdog on ranks that owe an answer."""

    # Looks at the ranks; with their processor times if the argument is True.
    look: Callable[[bool], Mapping[int, RankLook]]
    # Called with the seconds that late ranks waited for a processor, by rank, and with the seconds between two looks.
    starved: Callable[[Mapping[int, float], float], None]


class ProgressWatch:
    """Calls `on_stall` when a step was sent and no answer of any kind arrived for `deadline_s` seconds of run time. Run
    time excludes the absence of this process (see `patience`). It also excludes time before the last progress of the
    workers, and time without a processor for them (see `judge`). Without a `witness`, workers count as running.

    The step loop itself feeds the watchdog, so a worker that only answers pings does not count as alive. While nothing
    is in flight no timer runs: idle costs nothing. While steps come and go one timer is re-armed a few times a second,
    not once per step.
    """

    def __init__(self, deadline_s: float, on_stall: Callable[[], None], witness: Witness | None = None) -> None:
        self.deadline_s = deadline_s
        self._on_stall = on_stall
        self._judge = Judge()
        self._began = 0.0
        self._timer = PatientTimer(self._stalled, None if witness is None else partial(self._excused_s, witness))
        self._outstanding = 0

    @property
    def waited_s(self) -> float:
        """The seconds of run time since the last answer or the first request; 0 while no answer is due."""
        return self._timer.spent_s

    def expect(self, answers: int) -> None:
        """Note a step that `answers` workers must answer."""
        if not self._outstanding:
            self._start()
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
            self._start()

    def stop(self) -> None:
        """Stop watching."""
        self._outstanding = 0
        self._timer.stop()

    def _start(self) -> None:
        self._timer.start(self.deadline_s)
        self._judge.begin()
        self._began = asyncio.get_running_loop().time()

    def _excused_s(self, witness: Witness) -> float:
        """Look at the ranks, and return the seconds since the last look that do not count."""
        now = asyncio.get_running_loop().time()
        is_late = now - self._began >= min(_LATE_S, self.deadline_s / 4)
        verdict = self._judge.look(now, witness.look(is_late))
        if verdict.starved_s:
            witness.starved(verdict.starved_s, verdict.elapsed_s)
        return math.inf if verdict.progressed else verdict.excused_s

    def _stalled(self) -> None:
        self._outstanding = 0
        self._on_stall()
