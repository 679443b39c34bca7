"""The classification of worker deaths: passing, or a reason to give up."""

from numaserve.server.common.death import Cause
from numaserve.server.scheduler.suspects import Finding


class Deaths:
    """Distinguishes passing deaths of the workers from deaths after which the server should give up."""

    def __init__(self) -> None:
        self._answered_at_death = 0
        self._steps_at_conviction = -1

    def cause(self, finding: Finding, steps: int, beats: int) -> Cause:
        """Return the cause of a death after a total of `steps` answered steps and `beats` answered heartbeats.

        A further conviction without a step since the previous one explains nothing: workers that die of every request
        would restart as long as requests come.
        """
        answered, self._answered_at_death = steps + beats > self._answered_at_death, steps + beats
        if finding.convicted is not None:
            at_conviction, self._steps_at_conviction = self._steps_at_conviction, steps
            if steps <= at_conviction:
                return Cause.UNKNOWN
        if answered:
            return Cause.PASSING
        return Cause.REQUEST if finding.put_down else Cause.UNKNOWN
