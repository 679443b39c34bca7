"""The choice of draft tokens: which are worth a row of the next step, and when to wait for an answer for their sake."""

from collections.abc import Sequence as ListOf
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.speculation.acceptance import AcceptanceRates
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import Drafters
from numaserve.server.speculation.gain import DECLINES, MEMORY, Gain
from numaserve.server.speculation.row_times import RowTimes
from numaserve.server.speculation.sequence_drafts import DEEPEST, REST, SequenceDrafts, allowed
from numaserve.server.speculation.worker_drafts import BLIND, WorkerDrafts, blind_depths
from numaserve.workers.interface.protocol import MAX_MASKED_DRAFTS, TO_BE_DRAFTED

# Seconds for which workers idle when a plan waits for the answer before it: for each sequence of both plans, while
# nothing was observed. The time of a step apart from its sequences counts as `_PAUSE_APART` sequences.
_PAUSE = 1e-4
_PAUSE_APART = 4
_WORTH = 1.05  # minimum gain of a step with draft tokens: drafting takes time from the workers on few cores
_OUTLIER = 4.0  # the largest factor of the usual value that counts
_FEW = 4  # draft tokens of a sequence below which more are searched for
_LOOKED_AT = 4  # sequences for which a search at every token is possible
_USUAL_OUTPUT = 200.0  # output tokens of a sequence, while none has ended
_MEMORY_OF_ENDS = 0.05  # weight of the last sequence that ended
_RETRY = 0.01  # part of a bad experience with draft tokens that each step without any removes

# For draft tokens that follow each other, the probability that each and all before it are accepted.
_Odds = dict[Decode, list[float]]
_Depths = dict[Decode, int]


class Draft(NamedTuple):
    """Draft tokens of a sequence, and their drafter."""

    tokens: list[int]
    drafter: str


class Speculation:
    """Chooses the draft tokens that are worth a row of the next step, and when to wait for an answer for their sake.

    A verified row has the bits that it would have alone, so draft tokens change when tokens come, and never which. The
    choice over all sequences is greedy: one more draft token as long as it, or one of the next, makes the step give
    more tokens per second. This follows from the acceptance rate of the sequence and the cost of the step (`CostModel`,
    and `RowTimes` for what is not linear). Every draft token is compared with the token that was sampled, chosen or
    not: to learn that draft tokens are bad costs nothing.

    A plan that is made before the answer to the last one does not know what a draft token must follow. A step that
    would gain by draft tokens is therefore planned after the answer, although the workers idle meanwhile.
    """

    def __init__(
        self,
        drafters: Drafters,
        costs: CostModel,
        draft_costs: CostModel | None,
        *,
        worker_drafter: str | None,
        vocab_size: int,
    ) -> None:
        """Begin without any experience.

        `costs` are those of the served model, `draft_costs` those of the workers' drafter. Drafters of the front end
        draft tokens below `vocab_size`.
        """
        self._workers = None
        if draft_costs is not None and worker_drafter is not None:
            self._workers = WorkerDrafts(worker_drafter, draft_costs)
        self._vocab_size = vocab_size
        self._costs = costs
        self._drafters = drafters
        self._refused: set[Decode] = set()
        self._pause = _PAUSE
        self._times = RowTimes()
        self._kept = 1.0  # ratio of accepted to expected draft tokens
        self._turn = 1  # steps between two searches that find nothing
        self._resting = 0  # of these, the steps that are left
        self._least = 0.0  # recent minimum acceptance rate at which a draft token pays, per running sequence
        self.expected = 0.0  # accepted tokens among those that were chosen last
        self._usual_output = _USUAL_OUTPUT
        self._drafts: dict[Decode, SequenceDrafts] = {}
        self._of_all = AcceptanceRates()

    def begin_step(self) -> None:
        """Begin with the next step."""
        self._drafters.begin_step()

    def paused(self, seconds: float, sequences: int) -> None:
        """Note for how long the workers idled before and after a step of `sequences` sequences."""
        # A step after which many requests came at once says little about the next one.
        each = min(seconds / (sequences + _PAUSE_APART), _OUTLIER * self._pause)
        self._pause += MEMORY * (each - self._pause)

    def took(self, ratio: float, rows: int | None, kept: int | None, expected: float = 0.0) -> None:
        """Note the ratio of actual to predicted time of a step.

        `rows` is its number of rows, if it has no prompt. A step with draft tokens has `kept` of them, and `expected`
        was the number to be kept: draft tokens that seem good are chosen more often if they seem better than they are.
        """
        if self._workers is not None:
            self._workers.step_ended()
        if rows is not None and ratio > 0.0:
            self._times.took(rows, ratio)
        if kept is None:
            self._pause += _RETRY * (min(_PAUSE, self._pause) - self._pause)
            self._kept += _RETRY * (1.0 - self._kept)
        elif expected > 0.0:
            self._kept += MEMORY * (min(kept / expected, _OUTLIER) - self._kept)

    def refuse(self, seq: Decode) -> None:
        """Draft nothing for a sequence any more."""
        self._refused.add(seq)

    def may_draft(self, seq: Decode) -> bool:
        """Return whether draft tokens are possible for a sequence now: only workers can draft after tokens that only
        they know."""
        return self._workers is not None or not seq.position.pending

    def choose(self, decodes: ListOf[Decode], limit: int) -> dict[Decode, Draft]:
        """Return the draft tokens to verify in the next step, at most `limit`."""
        own, of_workers = self._depths(decodes, limit, unknown=0)
        if self._workers is not None and self._workers.is_due(pays=bool(of_workers)):
            rooms = self._rooms_of_workers([seq for seq in decodes if seq not in own], 0, self._least * len(decodes))
            of_workers = self._workers.tried(rooms, limit - sum(own.values()))
        self.expected = sum(self._drafts[seq].expected(depth) for seq, depth in own.items())
        drafts = dict[Decode, Draft]()
        for seq, depth in own.items():
            drafts[seq] = Draft(self._drafts[seq].tokens[:depth], self._drafts[seq].drafter)
        if self._workers is not None:
            self.expected += sum(self._workers.expected(seq, depth) for seq, depth in of_workers.items())
            for seq, depth in of_workers.items():
                drafts[seq] = Draft([TO_BE_DRAFTED] * depth, self._workers.name)
        return drafts

    def waits(self, running: ListOf[Decode], limit: int) -> bool:
        """Return whether the awaited answer is probably worth the wait, because the front end can draft after it.

        If not, it will not be soon, and for many sequences even the search takes time.
        """
        if self._resting:
            self._resting -= 1
            return False
        own, _ = self._depths([seq for seq in running if seq.position.pending], limit, unknown=1)
        if not own:
            self._resting = self._turn - 1
        return bool(own)

    def may_be_last(self, sequences: int, expected: float, seconds: float) -> bool:
        """Return whether a plan after a step with draft tokens should wait for the answer.

        All sequences of the step, which takes `seconds`, may have ended, the likelier the more draft tokens are
        expected to be accepted. The plan would then be wasted.
        """
        ends = min(1.0, (1.0 + expected / sequences) / self._usual_output)
        return seconds * ends**sequences > self._pause * (sequences + _PAUSE_APART)

    def answered(self, seq: Decode, tokens: list[int], by_workers: int = 0) -> None:
        """Compare draft tokens with the next tokens of a sequence; `by_workers` of the workers' were verified."""
        if by_workers and self._workers is not None:
            self._workers.answered(seq, len(tokens) - 1, by_workers)
        drafts = self._drafts.get(seq)
        if drafts is not None:
            drafts.answered(tokens)

    def forget(self, seq: Decode) -> None:
        """Forget a sequence that has ended."""
        self._drafts.pop(seq, None)
        output = len(seq.position.tokens) - seq.position.prompt_len
        self._usual_output += _MEMORY_OF_ENDS * (output - self._usual_output)
        if self._workers is not None:
            self._workers.forget(seq)
        self._refused.discard(seq)

    def _depths(self, decodes: ListOf[Decode], limit: int, *, unknown: int) -> tuple[_Depths, _Depths]:
        """Return the number of draft tokens of each sequence to verify once its next `unknown` tokens are known: those
        of the front end and those of the workers, without zeros."""
        least = self._least * len(decodes)
        self._turn = 1 + len(decodes) // _LOOKED_AT
        found = {seq: odds for seq in decodes if (odds := self._odds(seq, unknown, least))}
        rooms = self._rooms_of_workers(decodes, unknown, least)
        if limit < 1 or not (rooms or found):
            return {}, {}
        gain = self._gain(decodes, self._pause)
        if not self._costs.predicts:
            own = _paying(gain, _without(found, rooms), limit, predicts=False)
            return own, blind_depths(rooms, limit - sum(own.values()))
        self._least = gain.least
        own, of_workers = _paying(gain, found, limit), _Depths()
        rate = gain.rate
        if self._workers is not None and rooms:
            # Draft tokens that exist cost nothing, and the workers' may be more: which of both gives more? No worker
            # idles for the workers' draft tokens.
            others = _without(found, rooms)
            next_to = self._gain(decodes, self._pause if others else 0.0)
            fewer = _paying(next_to, others, limit)
            left = limit - sum(fewer.values())
            deeper, better = self._workers.depths(next_to, rooms, left, least)
            if better > rate:
                own, of_workers, rate = fewer, deeper, better
        return (own, of_workers) if rate > _WORTH * gain.rate_without else ({}, {})

    def _gain(self, decodes: ListOf[Decode], pause: float) -> Gain:
        """Return the gain of a step without draft tokens that is planned like a step with some."""
        pause *= len(decodes) + _PAUSE_APART
        # Sequences know by themselves where more draft tokens were kept than expected.
        return Gain(self._costs, decodes, self._times, pause=pause, kept=min(1.0, self._kept))

    def _rooms_of_workers(self, decodes: ListOf[Decode], unknown: int, least: float) -> _Depths:
        """Return the most draft tokens of each sequence that the workers should draft for: more of them should be
        accepted than of the draft tokens that exist."""
        if self._workers is None:
            return {}
        rooms = _Depths()
        for seq in decodes:
            room = self._room(seq)
            if room < 1 or not self._workers.may_draft(seq):
                continue
            if seq.position.pending > unknown:  # no other drafter can draft here
                rooms[seq] = room
                continue
            drafts = self._drafts_of(seq, least)
            if self._workers.expected(seq) > drafts.expected(len(drafts.tokens) - unknown):
                rooms[seq] = room
        return rooms

    def _room(self, seq: Decode) -> int:
        """Return the most draft tokens of a sequence: its last token is sampled after the last draft token."""
        # Masks after draft tokens take more of the matcher's time, and rank 0 would wait for them: a sequence whose
        # mask was late gets none.
        if seq.pool or seq.careful or seq in self._refused:
            return 0
        deepest = MAX_MASKED_DRAFTS if seq.sampling.masked else DEEPEST
        at = seq.position
        return min(at.max_tokens - len(at.tokens) - 1 - at.unknown, deepest)

    def _odds(self, seq: Decode, unknown: int, least: float) -> list[float]:
        """Return the odds of the draft tokens after the next `unknown` tokens of a sequence, as far as there is
        room."""
        if seq.position.pending > unknown:
            return []
        drafts = self._drafts_of(seq, least)
        return drafts.odds[unknown : min(len(drafts.tokens), unknown + self._room(seq))]

    def _drafts_of(self, seq: Decode, least: float) -> SequenceDrafts:
        """Return the draft tokens of a sequence, after a search where few are left.

        The search does not run at every token where draft tokens could not pay, nor for many sequences in a step: it
        takes time from the workers on few cores.
        """
        drafts = self._drafts.get(seq)
        if drafts is None:
            drafts = self._drafts[seq] = SequenceDrafts(self._drafters.make(seq), self._of_all)
        if seq.forbidden[1]:
            drafts.tokens = allowed(seq, drafts.tokens)
        if len(drafts.tokens) >= _FEW:
            return drafts
        known = len(seq.position.tokens)
        rest = REST if drafts.hope <= least else min(drafts.rest, self._turn**2)
        if known - drafts.made_after >= rest:
            drafts.search(seq, self._vocab_size)
            if seq.sampling.masked:
                seq.drafted = known, drafts.tokens
        return drafts


def _paying(gain: Gain, odds: _Odds, limit: int, *, predicts: bool = True) -> _Depths:
    """Return the draft tokens that make `gain` greater, and add them to it, the most probable first.

    If costs are not known (`predicts`), a few draft tokens of each sequence count as paying.
    """
    best, depths = gain.rate, _Depths()
    wasted: list[tuple[Decode, int, float]] = []  # the last ones
    # The step where kernels begin another pass is higher for each of many sequences.
    enough = max(DECLINES, len(odds) // 2)
    # The least comes first; among equal ones that of the earlier sequence.
    heap = [(-each[0], seq.arrival, 1, seq) for seq, each in odds.items()]
    heapify(heap)
    for _ in range(limit):
        if not heap or len(wasted) == enough:
            break
        _, arrival, depth, seq = heappop(heap)
        probability = odds[seq][depth - 1]
        gain.add(seq, depth, probability)
        depths[seq] = depth
        wasted.append((seq, depth, probability))
        rate = gain.rate
        if not predicts or rate > best:
            best = rate
            wasted.clear()
        if depth < len(odds[seq]) and (predicts or depth < BLIND):
            heappush(heap, (-odds[seq][depth], arrival, depth + 1, seq))
    for seq, depth, probability in reversed(wasted):
        gain.add(seq, depth, probability, times=-1)
        depths[seq] = depth - 1
    return {seq: depth for seq, depth in depths.items() if depth}


def _without(odds: _Odds, others: _Depths) -> _Odds:
    return {seq: each for seq, each in odds.items() if seq not in others}
