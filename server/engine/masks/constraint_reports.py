"""The reports of matchers about constraints, on their way from threads to the event loop."""

import logging
from collections import deque
from collections.abc import Callable

from numaserve.server.engine.clock import Clock
from numaserve.server.engine.masks.masked_sequence import MaskedSequence
from numaserve.server.scheduler.matcher import ConstraintFailed, TokenMatcher
from numaserve.server.speculation.reports import ConstraintReport

logger = logging.getLogger(__name__)

_MOST_S = 5e-3  # the work runs alongside everything else, but holds the interpreter's lock


class ConstraintReports:
    """A queue of reports. Threads append to it, and the event loop takes from it before it plans a step.

    A thread that wrote to the sequence instead could do so while the sequence is planned.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: deque[tuple[MaskedSequence, ConstraintReport]] = deque()

    def look(self, held: MaskedSequence, look: Callable[[TokenMatcher], ConstraintReport | None]) -> bool:
        """Append the report that `look` returns, if any; called in a thread. Return whether `look` neither failed nor
        took long, and may run again."""
        if held.matcher is None:
            return False
        begun = self._clock()
        try:
            report = look(held.matcher)
        except ConstraintFailed:
            return False
        except Exception:
            logger.exception("failed to compute the mask of a constraint")
            return False
        if report is not None:
            self._queue.append((held, report))
        return self._clock() - begun < _MOST_S

    def take(self) -> list[ConstraintReport]:
        """Return the reports since the last call, without those of sequences that have ended."""
        taken = []
        while self._queue:
            held, report = self._queue.popleft()
            if not held.ended:
                taken.append(report)
        return taken
