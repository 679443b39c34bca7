"""The choice of draft tokens: which are worth a row of the next step, and when to wait for an answer for their sake."""

from collections.abc import Sequence as ListOf
from heapq import heapify, heappop, heappush

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.speculation.acceptance import AcceptanceRates
from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import Drafters
from numaserve.server.speculation.gain import DECLINES, Gain
from numaserve.server.speculation.prices import Prices
from numaserve.server.speculation.reports import (
    Draft,
    DraftBudget,
    DraftForbidden,
    Proposal,
    Report,
    Sampled,
    SequencesEnded,
    StepAnswered,
    TokensForced,
    Unchecked,
    WorkersDied,
    WorkersIdled,
)
from numaserve.server.speculation.sequence_drafts import REST, SequenceDrafts
from numaserve.server.speculation.worker_drafts import BLIND, WorkerDrafts, blind_depths
from numaserve.workers.interface.drafters import MAX_DRAFTS
from numaserve.workers.interface.protocol import MAX_MASKED_DRAFTS

_WORTH = 1.05  # minimum gain of a step with draft tokens: drafting takes time from the workers on few cores
_FEW = 4  # draft tokens of a sequence below which more are searched for
_LOOKED_AT = 4  # sequences for which a search at every token is possible

# For draft tokens that follow each other, the probability that each and all before it are accepted.
_Odds = dict[Decode, list[float]]
_Depths = dict[Decode, int]


class Speculation:
    """Chooses the draft tokens that are worth a row of the next step, and when to wait for an answer for their sake.

    A verified row has the bits that it would have alone, so draft tokens change when tokens come, and never which. The
    choice over all sequences is greedy: one more draft token as long as it, or one of the next, makes the step give
    more tokens per second. This follows from the acceptance rate of the sequence and the cost of the step (`CostModel`,
    and `Prices` for the rest). Every draft token is compared with the token that was sampled, chosen or not: to learn
    that draft tokens are bad costs nothing.

    A plan that is made before the answer to the last one does not know what a draft token must follow. A step that
    would gain by draft tokens is therefore planned after the answer, although the workers idle meanwhile.

    The scheduler calls `propose` twice for each step, when the step opens and when its decodes are known, and
    `observe`. Nothing else is called, and sequences are never changed.
    """

    def __init__(
        self,
        drafters: Drafters,
        costs: CostModel,
        workers: WorkerDrafts | None,
        *,
        vocab_size: int,
        placeholder: int | None = None,
        max_drafts: int = MAX_DRAFTS,
    ) -> None:
        """Begin without any experience.

        `costs` are those of the served model. `workers` is the workers' drafter, if there is one. Drafters of the
        front end draft tokens below `vocab_size`, and never the `placeholder` of images. A sequence has at most
        `max_drafts` draft tokens in a step.
        """
        self._drafters = drafters
        self._workers = workers
        self._vocab_size = vocab_size
        self._placeholder = placeholder
        self._max_drafts = max_drafts
        self._prices = Prices(costs)
        self._refused: set[Decode] = set()
        self._turn = 1  # steps between two searches that find nothing
        self._resting = 0  # of these, the steps that are left
        self._least = 0.0  # recent minimum acceptance rate at which a draft token pays, per running sequence
        self._drafts: dict[Decode, SequenceDrafts] = {}
        self._of_all = AcceptanceRates()
        self._unchecked: list[Unchecked] = []  # of the proposal in the making

    def propose(self, decodes: ListOf[Decode], budget: DraftBudget) -> Proposal:
        """Return the draft tokens to verify in a step, at most `budget.rows`.

        For a step that opens, `decodes` are all running sequences, and the proposal says whether the step should be
        planned after the answer to the last plan in flight.
        """
        self._unchecked = []
        if budget.opens:
            self._drafters.begin_step()
            return Proposal(waits=self._waits(decodes, budget), unchecked=self._unchecked)
        own, of_workers = self._depths(decodes, budget.rows, unknown=0)
        workers, reading = self._workers, None
        if workers is not None:
            reading = workers.reading(budget.step_id)
            if workers.is_due(pays=bool(of_workers)):
                others = [seq for seq in decodes if seq not in own]
                rooms = self._rooms_of_workers(others, 0, self._least * len(decodes))
                of_workers = workers.tried(rooms, budget.rows - sum(own.values()))
        drafts = {seq: Draft(self._drafts[seq].tokens[:depth], self._drafts[seq].drafter) for seq, depth in own.items()}
        expected = sum(self._drafts[seq].expected(depth) for seq, depth in own.items())
        if workers is not None:
            expected += sum(workers.expected(seq, depth) for seq, depth in of_workers.items())
            drafts |= {seq: workers.draft(depth) for seq, depth in of_workers.items()}
        return Proposal(drafts, expected, unchecked=self._unchecked, reading=reading)

    def observe(self, report: Report) -> None:
        """Learn from what has happened."""
        match report:
            case StepAnswered():
                self._answered(report)
            case WorkersIdled(seconds, sequences):
                self._prices.idled(seconds, sequences)
            case SequencesEnded(sequences):
                for seq in sequences:
                    self._forget(seq)
            case WorkersDied(sequences):
                self._refused.update(sequences)
            case TokensForced(seq, begin, tokens):
                self._state(seq).constraint.forced = begin, tokens
            case DraftForbidden(seq, begin, tokens):
                self._state(seq).constraint.forbidden = begin, tokens

    def _answered(self, step: StepAnswered) -> None:
        if step.ratio is not None:
            if self._workers is not None:
                self._workers.step_ended()
            self._prices.took(step.ratio, step.rows, step.kept, step.expected)
        for each in step.sampled:
            self._compare(each)

    def _compare(self, sampled: Sampled) -> None:
        """Compare draft tokens with the next tokens of a sequence."""
        seq, tokens, by_workers = sampled
        if by_workers and self._workers is not None:
            self._workers.answered(seq, len(tokens) - 1, by_workers)
        drafts = self._drafts.get(seq)
        if drafts is not None:
            drafts.answered(tokens)

    def _forget(self, seq: Decode) -> None:
        self._drafts.pop(seq, None)
        self._prices.ended(len(seq.position.tokens) - seq.position.prompt_len)
        if self._workers is not None:
            self._workers.forget(seq)
        self._refused.discard(seq)

    def _waits(self, running: ListOf[Decode], budget: DraftBudget) -> bool:
        """Return whether the awaited answer is probably worth the wait.

        The front end drafts after the answer only. If that is not worth the wait, it will not be soon, and for many
        sequences even the search takes time.
        """
        awaited = budget.awaited
        if awaited is None:
            return False
        if awaited.drafts > awaited.by_workers:
            return True
        if awaited.drafts and self._prices.may_be_last(awaited.sequences, awaited.expected, awaited.seconds):
            return True
        if self._resting:
            self._resting -= 1
            return False
        own, _ = self._depths([seq for seq in running if seq.position.pending], budget.rows, unknown=1)
        if not own:
            self._resting = self._turn - 1
        return bool(own)

    def _depths(self, decodes: ListOf[Decode], limit: int, *, unknown: int) -> tuple[_Depths, _Depths]:
        """Return the number of draft tokens of each sequence to verify once its next `unknown` tokens are known: those
        of the front end and those of the workers, without zeros."""
        least = self._least * len(decodes)
        self._turn = 1 + len(decodes) // _LOOKED_AT
        found = {seq: odds for seq in decodes if (odds := self._odds(seq, unknown, least))}
        rooms = self._rooms_of_workers(decodes, unknown, least)
        if limit < 1 or not (rooms or found):
            return {}, {}
        gain = self._prices.gain(decodes, waits=True)
        if not self._prices.are_known:
            own = _paying(gain, _without(found, rooms), limit, predicts=False)
            return own, blind_depths(rooms, limit - sum(own.values()))
        self._least = gain.least
        own, of_workers = _paying(gain, found, limit), _Depths()
        rate = gain.rate
        if self._workers is not None and rooms:
            # Draft tokens that exist cost nothing, and the workers' may be more: which of both gives more? No worker
            # idles for the workers' draft tokens.
            others = _without(found, rooms)
            next_to = self._prices.gain(decodes, waits=bool(others))
            fewer = _paying(next_to, others, limit)
            deeper, better = self._workers.depths(next_to, rooms, limit - sum(fewer.values()), least)
            if better > rate:
                own, of_workers, rate = fewer, deeper, better
        return (own, of_workers) if rate > _WORTH * gain.rate_without else ({}, {})

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
        if seq.request.pooling is not None or seq.careful or seq in self._refused:
            return 0
        at, masked = seq.position, MAX_MASKED_DRAFTS if seq.request.sampling.masked else self._max_drafts
        return min(at.max_tokens - len(at.tokens) - 1 - at.unknown, self._max_drafts, masked)

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
        drafts, tokens = self._state(seq), seq.position.tokens
        drafts.drop_forbidden(tokens)
        if len(drafts.tokens) >= _FEW:
            return drafts
        rest = REST if drafts.hope <= least else min(drafts.rest, self._turn**2)
        if len(tokens) - drafts.made_after >= rest:
            drafts.search(tokens, self._vocab_size, self._placeholder)
            if seq.request.sampling.masked:
                self._unchecked.append(Unchecked(seq, len(tokens), drafts.tokens))
        return drafts

    def _state(self, seq: Decode) -> SequenceDrafts:
        drafts = self._drafts.get(seq)
        if drafts is None:
            constraint = KnownConstraint()
            drafts = SequenceDrafts(self._drafters.make(seq, constraint), self._of_all, constraint)
            self._drafts[seq] = drafts
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
