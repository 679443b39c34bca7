"""The predicted time of a step in the making, and the limit on it."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from collections.abc import Sequence as ListOf

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import StepWork
from numaserve.server.scheduler.sequence import (
    DEFAULT_SPLIT_COST,
    DEFAULT_TARGET_ITL_S,
    DEFAULT_TARGET_STEPS,
    SchedulerConfig,
    Sequence,
)
from numaserve.server.scheduler.tower_runs import TowerRuns

_PIECES = 4  # of a page, where a page takes too long: smaller ones would leave more of the kernels' tiles empty


class StepTime:
    """The time that a step takes with more positions of a prompt, and the time that its decodes may wait for it.

    All times are seconds, as `costs` predicts them for the `work` that was planned so far.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        costs: CostModel,
        work: StepWork,
        draft_costs: CostModel | None,
        tower: TowerRuns | None,
    ) -> None:
        """Begin a step; see `StepBudget`."""
        self._page_size = config.page_size
        self._target_s = config.target_itl_s
        self._costs = costs
        self._work = work
        self._draft_costs = draft_costs
        self._tower = tower
        self._decodes_s: float | None = None
        self._limit_s: float | None = None

    @property
    def planned_s(self) -> float:
        """The time of the step as planned so far, with the tower's runs."""
        planned_s = self._costs.predict(self._work.terms())
        return planned_s if self._tower is None else planned_s + self._tower.planned_s

    def limit(self, seq: Sequence, longest: int) -> float | None:
        """Return the limit on the step, for the sake of its decodes, when `seq` is the first prefill to ask; None
        without predictions. A chunk of `longest` tokens is the longest possible one."""
        if self._limit_s is None and self._costs.predicts:
            self._limit_s = self._limit(seq, longest)
        return self._limit_s

    def of_page(self, seq: Sequence, start: int) -> float:
        """Return the time of the step with a page of a prompt from `start` on, and with the run of the tower there."""
        length = min(self._page_size, len(seq.tokens) - start)
        run_s = self._tower.seconds(seq, start, start + 1) if self._tower is not None else 0.0
        return self._costs.predict(self._work.terms(start, length, 1, adapter=seq.request.adapter)) + run_s

    def fitting(self, seq: Sequence, length: int, limit_s: float) -> int:
        """Return the longest chunk of a sequence's next `length` positions with which the step takes at most `limit_s`
        seconds, or the shortest chunk; all positions if there is no place to cut."""
        start, cuts = seq.position.computed, self._cuts(seq, length, limit_s)
        fitting = bisect_right(cuts, limit_s, key=lambda end: self.total(seq, end - start))
        return cuts[max(fitting, 1) - 1] - start if cuts else length

    def total(self, seq: Sequence, length: int) -> float:
        """Return the time of the step with `length` positions of `seq`, and with the tower's runs."""
        if self._tower is None:
            return self._seconds(seq, length)
        start = seq.position.computed
        return self._seconds(seq, length) + self._tower.seconds(seq, start, start + length)

    def _limit(self, seq: Sequence, longest: int) -> float:
        alone = self._alone()  # before a prefill joins the decodes
        if self._target_s is not None:
            return self._target_s
        return max(DEFAULT_TARGET_ITL_S, DEFAULT_TARGET_STEPS * alone, self._economical(seq, longest))

    def _alone(self) -> float:
        """Return the time of the decodes without a prefill, as predicted when a prefill first asks."""
        if self._decodes_s is None:
            self._decodes_s = self._costs.predict(self._work.terms())
        return self._decodes_s

    def _economical(self, seq: Sequence, longest: int) -> float:
        """Return the time of the step with the shortest chunk whose tokens cost little more than in the longest one.

        The longest one, of `longest` tokens, fills a step of `least_step_tokens` tokens: streams do not wait longer
        because the server has memory for longer steps. Most chunks read nearly all experts of a large mixture, however
        few tokens they have. Shorter chunks would halve the throughput, and all streams would wait longer in total.
        """
        start, cuts = seq.position.computed, self._cuts(seq, longest, math.inf)
        if not cuts:
            return 0.0

        def cost(end: int) -> float:
            return (self._seconds(seq, end - start) - self._alone()) / (end - start)

        end = cuts[shortest_economical(cuts, cost, DEFAULT_SPLIT_COST)]
        return self._seconds(seq, end - start)

    def _cuts(self, seq: Sequence, length: int, limit_s: float) -> list[int]:
        """Return where a chunk of a sequence's next `length` positions may end, ascending: inside the first page, if
        the step can take at most `limit_s` seconds, and at the ends of whole pages."""
        start, size = seq.position.computed, self._page_size
        first_end, piece = (start // size + 1) * size, max(1, size // _PIECES)
        page_ends = range(first_end, start + length + 1, size)
        if self._alone() >= limit_s:
            return [*page_ends]
        least_s = 2 * self._alone()
        inside = range((start // piece + 1) * piece, min(first_end, start + length + 1), piece)
        shortest = bisect_left(inside, least_s, key=lambda end: self._seconds(seq, end - start))
        return [*inside[shortest:], *page_ends]

    def _seconds(self, seq: Sequence, length: int) -> float:
        """Return the time of the step with `length` positions of `seq`, and without the tower."""
        rows = length if seq.request.prompt_logprobs else 1
        terms = self._work.terms(seq.position.computed, length, rows, adapter=seq.request.adapter)
        seconds = self._costs.predict(terms)
        if self._draft_costs is None:
            return seconds
        return seconds + self._draft_costs.predict(self._draft_costs.begin().terms(seq.position.computed, length))


def shortest_economical(lengths: ListOf[int], cost: Callable[[int], float], factor: float) -> int:
    """Return the index of the first of ascending `lengths` whose tokens cost at most `factor` times as much as with the
    last one."""
    most = factor * cost(lengths[-1])
    return bisect_left(lengths, True, hi=len(lengths) - 1, key=lambda length: cost(length) <= most)
