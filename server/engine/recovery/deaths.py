"""Which deaths of the workers may go on for ever."""

from numaserve.server.common.death import Cause
from numaserve.server.scheduler.suspects import Finding


class Deaths:
    """Tells deaths that end by themselves from those after which the server should rather give up."""

    def __init__(self) -> None:
        self._answered_at_death = 0
        self._steps_at_conviction = -1

    def cause(self, finding: Finding, steps: int, beats: int) -> Cause:
        """The cause of a death after so many answered `steps`, and `beats` of the heart, in all.

        One more conviction without a step since the one before explains nothing: workers that die of every request
        would be started again as long as requests come.
        """
        answered, self._answered_at_death = steps + beats > self._answered_at_death, steps + beats
        if finding.convicted is not None:
            at_conviction, self._steps_at_conviction = self._steps_at_conviction, steps
            if steps <= at_conviction:
                return Cause.UNKNOWN
        if answered:
            return Cause.PASSING
        return Cause.REQUEST if finding.put_down else Cause.UNKNOWN
