"""The tokens that the workers' drafter reads and drafts in a step, and the time that this takes."""

from collections.abc import Sequence as ListOf
from typing import NamedTuple

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.costs.cost_table import Terms, summed
from numaserve.server.speculation.decode import Decode
from numaserve.workers.interface.protocol import DraftWork


class Reading(NamedTuple):
    """The tokens that the drafter reads of a sequence: `length` tokens from position `start`, and then its `drafts`."""

    start: int
    length: int
    drafts: int


def reading_before_drafts(seq: Decode, drafts: int) -> Reading:
    """Return the reading of a sequence whose next token is known and gets draft tokens."""
    at = seq.position
    return Reading(at.drafter_read, at.next + 1 - at.drafter_read, drafts)


def pass_terms(costs: CostModel, readings: ListOf[Reading], number: int) -> Terms:
    """Return the work of one pass: the first pass reads, and each pass drafts one more token where it is wanted."""
    work = costs.begin()
    for each in readings:
        if number == 0:
            work.add(each.start, each.length, 1 if each.drafts else 0)
        elif each.drafts > number:
            work.add(each.start + each.length + number - 1, 1, 1)
    return work.terms()


def terms_of_passes(costs: CostModel, readings: ListOf[Reading]) -> Terms:
    """Return the work of all passes."""
    passes = max((max(1, each.drafts) for each in readings), default=0)
    return summed(pass_terms(costs, readings, number) for number in range(passes))


class WorkerReading:
    """The part of the workers' drafter in a step in the making.

    The drafter reads prompts together with the served model, and output when it makes draft tokens. It reads other
    sequences page by page, because a page is shared only if both models have read it: together with other reading, or
    once in the number of steps that a page has tokens. While it drafts nothing, it rests in all other steps, however
    many sequences there are.
    """

    def __init__(
        self,
        costs: CostModel,
        page_size: int,
        *,
        its_turn: bool,
        shares_pages: bool,
        most_unread: int | None,
        reads_prompts: bool = True,
    ) -> None:
        """Begin a step. The drafter reads page by page if it `shares_pages`, in any case where it is `its_turn`. It
        leaves at most `most_unread` tokens of a sequence unread. Without `reads_prompts`, it reads only where it
        drafts."""
        self._costs = costs
        self._page_size = page_size
        self._shares_pages = shares_pages
        self._most_unread = most_unread
        self._reads_prompts = reads_prompts
        self._its_turn = its_turn
        self._lagging: list[tuple[int, Decode, int, int]] = []
        self._readings: list[Reading] = []
        self.plans: list[DraftWork] = []

    def add(self, index: int, seq: Decode, known: int, drafts: int) -> int:
        """Note the sequence that is planned at `index`, and return the number of tokens that are then read.

        The drafter reads the tokens before `known`; these include tokens that only workers know where it makes draft
        tokens.
        """
        start, read = seq.position.next, seq.position.drafter_read
        if known <= read:
            return read
        if not (self._reads_prompts or drafts):
            return known
        is_late = self._most_unread is not None and known - read > self._most_unread
        if drafts or known - start > 1 or is_late:
            self._read(index, seq, start, known, drafts)
            return known
        # Accepted draft tokens in flight are read already, and their number is in the answer.
        if not seq.position.drafts and self._shares_pages and known // self._page_size > read // self._page_size:
            self._lagging.append((index, seq, start, known))
        return read

    def finish(self) -> list[tuple[int, int]]:
        """End the step: nothing is added any more. Return the index of each sequence that is read in addition, and the
        number of its tokens that are then read."""
        if not (self.plans or self._its_turn):
            return []
        for each in self._lagging:
            self._read(*each, drafts=0)
        return [(index, known) for index, _, _, known in self._lagging]

    def _read(self, index: int, seq: Decode, start: int, known: int, drafts: int) -> None:
        read = seq.position.drafter_read
        self.plans.append(DraftWork(index, seq.position.tokens[read:start]))
        self._readings.append(Reading(read, known - read, drafts))

    def terms(self) -> Terms:
        """Return the work of all passes."""
        return terms_of_passes(self._costs, self._readings)
