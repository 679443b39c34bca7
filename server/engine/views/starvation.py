"""Workers that lack processor time: in the log, and for `numaserve top`."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from numaserve.server.engine.clock import Clock

logger = logging.getLogger(__name__)

_STARVED = 0.5  # part of the time in which at least one rank waits for a processor
_BLAMED = 0.5  # part of the longest rank's time from which another rank is starved too
_LOG_AFTER_S = 2.0
_LOG_AGAIN_S = 60.0
_PERIOD_S = 10.0  # of late steps that are judged together
_BREAK_S = 10.0  # without a late step, after which no rank is starved


@dataclass
class _Period:
    """Late steps that are judged together."""

    late_s: float = 0.0
    waited_s: float = 0.0  # by at least one rank
    of_ranks: Counter[int] = field(default_factory=Counter)  # the seconds that each rank waited

    def ranks(self) -> list[int]:
        """Return the ranks that are starved."""
        if self.waited_s <= _STARVED * self.late_s:
            return []
        longest = max(self.of_ranks.values())
        return sorted(rank for rank, waited in self.of_ranks.items() if waited >= _BLAMED * longest)


class Starvation:
    """Keeps the time for which the ranks of late steps waited for a processor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._period = _Period()
        self._noted_at = self._logged_at = float("-inf")

    def note(self, waited_s: Mapping[int, float], elapsed_s: float) -> None:
        """Note for how many of the last `elapsed_s` seconds each rank of a late step waited for a processor."""
        now = self._clock()
        if now - self._noted_at > _BREAK_S or self._period.late_s >= _PERIOD_S:
            self._period = _Period()
        self._noted_at, period = now, self._period
        period.late_s += elapsed_s
        period.waited_s += max(waited_s.values(), default=0.0)
        period.of_ranks.update(waited_s)
        ranks = period.ranks()
        if not ranks or period.late_s < _LOG_AFTER_S or now - self._logged_at < _LOG_AGAIN_S:
            return
        self._logged_at = now
        logger.warning(
            "worker %s is starved of CPU: late steps waited %.1f of %.1f s for a CPU. The server waits for the worker. "
            "End other processes on its cores, or raise the CPU quota of the service.",
            ", ".join(map(str, ranks)),
            period.waited_s,
            period.late_s,
        )

    def ranks(self) -> list[int]:
        """Return the ranks that are starved, or were a few seconds ago."""
        return self._period.ranks() if self._clock() - self._noted_at <= _BREAK_S else []
