"""What the workers' draft model reads and guesses in a step, and how long that takes.

A layer of the model that predicts (MTP) is a draft model as far as plans go. It reads each token with what the model
made of the one before: what it reads of its own guesses it has to read again, and workers know only of a sequence's
last tokens what was made of them.
"""

from collections.abc import Sequence as ListOf
from typing import NamedTuple

from numaserve.server.scheduler.costs.cost_model import CostModel
from numaserve.server.scheduler.costs.cost_table import Terms, summed
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence
from numaserve.workers.interface.protocol import KEPT_HIDDEN_STATES, DraftWork

_MOST_LACKING = KEPT_HIDDEN_STATES // 2  # tokens of a sequence that a layer which predicts has not read


class Reading(NamedTuple):
    """Tokens that the draft model reads of a sequence, `length` from position `start` on, and how many it guesses."""

    start: int
    length: int
    guesses: int


def reading_before_guesses(seq: Sequence, guesses: int) -> Reading:
    """What it reads of a sequence whose next token is known and that is guessed behind."""
    return Reading(seq.draft_read, seq.next_position + 1 - seq.draft_read, guesses)


def pass_terms(costs: CostModel, readings: ListOf[Reading], number: int) -> Terms:
    """The work of one of its passes: the first reads, and each guesses the next token where that many are wanted."""
    work = costs.begin()
    for each in readings:
        if number == 0:
            work.add(each.start, each.length, 1 if each.guesses else 0)
        elif each.guesses > number:
            work.add(each.start + each.length + number - 1, 1, 1)
    return work.terms()


def terms_of_passes(costs: CostModel, readings: ListOf[Reading]) -> Terms:
    """The work of all its passes for those."""
    passes = max((max(1, each.guesses) for each in readings), default=0)
    return summed(pass_terms(costs, readings, number) for number in range(passes))


class DraftModelWork:
    """The draft model's part of a step in the making.

    It reads prompts with the served model, and what is said when it is to guess behind. Of other sequences it reads
    what has filled a page, since pages are shared with others only if both models have read them: with what it reads
    anyway, or in every so many steps as a page has tokens. While nothing is guessed it rests in all other steps,
    however many sequences there are.
    """

    def __init__(self, costs: CostModel, config: SchedulerConfig, step_id: int) -> None:
        self._costs = costs
        self._page_size = config.page_size
        self._shares_pages = config.enable_prefix_cache
        self._forgets = config.worker_drafter == "mtp"
        self._its_turn = step_id % config.page_size == 0
        self._lagging: list[tuple[int, Sequence, int, int]] = []
        self._readings: list[Reading] = []
        self.plans: list[DraftWork] = []

    def add(self, index: int, seq: Sequence, known: int, guesses: int) -> None:
        """A sequence is planned as the `index`-th of the plan. It reads the tokens before `known`, those that only the
        workers know among them where it guesses."""
        start, behind = seq.next_position, seq.draft_read
        if known <= behind:
            return
        if guesses or known - start > 1 or (self._forgets and known - behind > _MOST_LACKING):
            self._read(index, seq, start, known, guesses)
        elif seq.num_guessed:
            return  # what it has read of guesses that are right it need not read again, and the answer will tell
        elif self._shares_pages and known // self._page_size > behind // self._page_size:
            self._lagging.append((index, seq, start, known))

    def finish(self) -> None:
        """Nothing is added any more."""
        if self.plans or self._its_turn:
            for each in self._lagging:
                self._read(*each, guesses=0)

    def _read(self, index: int, seq: Sequence, start: int, known: int, guesses: int) -> None:
        behind = seq.draft_read
        self.plans.append(DraftWork(index, seq.tokens[behind:start]))
        self._readings.append(Reading(behind, known - behind, guesses))
        seq.draft_read = known

    def terms(self) -> Terms:
        """The work of all its passes."""
        return terms_of_passes(self._costs, self._readings)
