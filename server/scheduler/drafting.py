"""Drafts: guesses of the tokens that come next, which one step verifies all at once."""

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from numaserve.server.scheduler.costs.row_times import RowTimes
from numaserve.server.scheduler.draft_gain import DECLINES, MEMORY, Gain
from numaserve.server.scheduler.draft_model_guesses import BLIND, DraftModelGuesses, blind_depths
from numaserve.server.scheduler.guesses import DEEPEST, REST, Drafters, Guesses, Rightness, allowed
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence
from numaserve.server.scheduler.step import InFlight
from numaserve.server.scheduler.step_costs import StepCosts
from numaserve.workers.interface.protocol import MAX_MASKED_DRAFTS, TO_BE_DRAFTED

# Seconds for which the workers wait when a plan is made only after the answer to the one before it, for each sequence
# of both, as long as none was seen; what a step takes beside is as that of so many sequences.
_PAUSE = 1e-4
_PAUSE_BESIDE = 4
_WORTH = 1.05  # how much more a step has to give: guessing itself takes time from the workers, on few cores
_OUTLIER = 4.0  # times what is usual: what is further off counts as if it were that far
_FEW = 4  # guesses left of a sequence that was guessed rightly, from which on more are looked for
_LOOKED_AT = 4  # sequences for which something may be looked for at every token
_USUAL_OUTPUT = 200.0  # tokens of a sequence's output, as long as none has ended
_MEMORY_OF_ENDS = 0.05  # weight of the last sequence that ended among all that tell it
_RETRY = 0.01  # by which what speaks against guesses is forgotten with each step without any


class Draft(NamedTuple):
    """Guesses of the next tokens of a sequence, and what made them."""

    tokens: list[int]
    drafter: str


# Of guesses that follow each other: the probability that each is right, and all before it.
_Odds = dict[Sequence, list[float]]
_Depths = dict[Sequence, int]


class Drafting:
    """Which guesses are worth a place in the next step, and when to wait for an answer for their sake.

    A verified row has the bits that it would have alone, so guesses change when tokens come, and never which. Those of
    all sequences together are chosen greedily: one more as long as it, or one of the next, makes the step give more
    tokens a second, by how often the sequence's guesses were right and by what the step will cost (`CostModel`, and
    `RowTimes` for what is not linear). Every guess is held against the token that came, chosen or not, so that it costs
    nothing to learn that they are no good.

    A plan that is made before the answer to the last one knows nothing that a guess could follow. So a step that would
    gain by guesses is planned after the answer, though the workers wait for it meanwhile.
    """

    def __init__(self, costs: StepCosts, drafters: Drafters, config: SchedulerConfig) -> None:
        self._draft_model = None
        if costs.draft_model is not None and config.worker_drafter is not None:
            self._draft_model = DraftModelGuesses(config.worker_drafter, costs.draft_model)
        self._vocab_size = config.vocab_size
        self._costs = costs.served
        self._drafters = drafters
        self._refused: set[Sequence] = set()
        self._pause = _PAUSE
        self._times = RowTimes()
        self._kept = 1.0  # of the guesses that were expected to be right, those that were
        self._turn = 1  # steps from one in which guesses are looked for in vain to the next
        self._resting = 0  # of those, the steps that are left
        self._least = 0.0  # how often a guess has to be right to pay, by sequences that run; as it was lately
        self.expected = 0.0  # to be right, of those that were chosen last
        self._usual_output = _USUAL_OUTPUT
        self._guesses: dict[Sequence, Guesses] = {}
        self._of_all = Rightness()

    def begin_step(self) -> None:
        """Begin with the next step."""
        self._drafters.begin_step()

    def paused(self, seconds: float, sequences: int) -> None:
        """Learn for how long the workers had nothing to do before and after a step of so many sequences."""
        # A step behind which many requests came at once tells little of the next one.
        each = min(seconds / (sequences + _PAUSE_BESIDE), _OUTLIER * self._pause)
        self._pause += MEMORY * (each - self._pause)

    def took(self, ratio: float, rows: int | None, kept: int | None, expected: float = 0.0) -> None:
        """Learn what a step took of the predicted time, and of how many rows it was, if no prompt was beside; and of
        one with guesses, how many it has kept, and how many it was expected to: of guesses that seem good, those are
        chosen that seem better than they are."""
        if self._draft_model is not None:
            self._draft_model.step_ended()
        if rows is not None and ratio > 0.0:
            self._times.took(rows, ratio)
        if kept is None:
            self._pause += _RETRY * (min(_PAUSE, self._pause) - self._pause)
            self._kept += _RETRY * (1.0 - self._kept)
        elif expected > 0.0:
            self._kept += MEMORY * (min(kept / expected, _OUTLIER) - self._kept)

    def refuse(self, seq: Sequence) -> None:
        """Guess nothing behind a sequence any more."""
        self._refused.add(seq)

    def may_guess(self, seq: Sequence) -> bool:
        """Whether anything could be guessed of a sequence now: behind tokens that only the workers know, they alone
        can."""
        return self._draft_model is not None or not seq.num_pending

    def choose(self, decodes: list[Sequence], most: int) -> dict[Sequence, Draft]:
        """The guesses to verify in the next step, at most so many."""
        own, of_model = self._depths(decodes, most, unknown=0)
        if self._draft_model is not None and self._draft_model.is_due(pays=bool(of_model)):
            rooms = self._rooms_of_model([seq for seq in decodes if seq not in own], 0, self._least * len(decodes))
            of_model = self._draft_model.tried(rooms, most - sum(own.values()))
        self.expected = sum(self._guesses[seq].expected(depth) for seq, depth in own.items())
        drafts = dict[Sequence, Draft]()
        for seq, depth in own.items():
            drafts[seq] = Draft(self._guesses[seq].tokens[:depth], self._guesses[seq].drafter)
        if self._draft_model is not None:
            self.expected += sum(self._draft_model.expected(seq, depth) for seq, depth in of_model.items())
            for seq, depth in of_model.items():
                drafts[seq] = Draft([TO_BE_DRAFTED] * depth, self._draft_model.name)
        return drafts

    def waits(self, running: list[Sequence], most: int) -> bool:
        """Whether the answer that is awaited will probably be worth the wait, since the front end can guess behind it.
        Where it is not it will not be soon, and of many sequences even that takes time to tell."""
        if self._resting:
            self._resting -= 1
            return False
        own, _ = self._depths([seq for seq in running if seq.num_pending], most, unknown=1)
        if not own:
            self._resting = self._turn - 1
        return bool(own)

    def may_be_last(self, step: InFlight, seconds: float) -> bool:
        """Whether a plan behind a step with guesses, which takes so long, had better wait for the answer: all of its
        sequences may have ended, the sooner the more tokens it brings, and the plan would be run in vain."""
        sequences = len(step.entries)
        ends = min(1.0, (1.0 + step.expected / sequences) / self._usual_output)
        return seconds * ends**sequences > self._pause * (sequences + _PAUSE_BESIDE)

    def answered(self, seq: Sequence, tokens: list[int], by_model: int = 0) -> None:
        """Hold what was guessed against the next tokens of the sequence, which it has got; `by_model` is how many
        guesses of the draft model were verified."""
        if by_model and self._draft_model is not None:
            self._draft_model.answered(seq, len(tokens) - 1, by_model)
        guesses = self._guesses.get(seq)
        if guesses is not None:
            guesses.answered(tokens)

    def forget(self, seq: Sequence) -> None:
        """Forget a sequence that has ended."""
        self._guesses.pop(seq, None)
        self._usual_output += _MEMORY_OF_ENDS * (len(seq.tokens) - seq.prompt_len - self._usual_output)
        if self._draft_model is not None:
            self._draft_model.forget(seq)
        self._refused.discard(seq)

    def _depths(self, decodes: list[Sequence], most: int, *, unknown: int) -> tuple[_Depths, _Depths]:
        """How many guesses of each sequence to verify once its next `unknown` tokens are known, of those that there are
        and of the draft model's; none is left out."""
        least = self._least * len(decodes)
        self._turn = 1 + len(decodes) // _LOOKED_AT
        found = {seq: odds for seq in decodes if (odds := self._odds(seq, unknown, least))}
        rooms = self._rooms_of_model(decodes, unknown, least)
        if most < 1 or not (rooms or found):
            return {}, {}
        gain = self._gain(decodes, self._pause)
        if not self._costs.predicts:
            own = self._paying(gain, _without(found, rooms), most)
            return own, blind_depths(rooms, most - sum(own.values()))
        self._least = gain.least
        own, of_model = self._paying(gain, found, most), _Depths()
        rate = gain.rate
        if self._draft_model is not None and rooms:
            # Guesses that are there cost nothing, and those of the draft model may be more: which of both gives more?
            # For the draft model's sake no worker rests.
            others = _without(found, rooms)
            beside = self._gain(decodes, self._pause if others else 0.0)
            fewer = self._paying(beside, others, most)
            deeper, better = self._draft_model.depths(beside, rooms, most - sum(fewer.values()), least)
            if better > rate:
                own, of_model, rate = fewer, deeper, better
        return (own, of_model) if rate > _WORTH * gain.rate_without else ({}, {})

    def _gain(self, decodes: list[Sequence], pause: float) -> Gain:
        """What a step of those gives without guesses, though planned as one with some."""
        pause *= len(decodes) + _PAUSE_BESIDE
        # Where more were kept than was expected, the sequences know it by themselves: no guess is righter than right.
        return Gain(self._costs, decodes, self._times, pause=pause, kept=min(1.0, self._kept))

    def _paying(self, gain: Gain, odds: _Odds, most: int) -> _Depths:
        """Those guesses that make `gain` greater, the most probable first; they are added to it."""
        predicts, best, depths = self._costs.predicts, gain.rate, _Depths()
        in_vain: list[tuple[Sequence, int, float]] = []  # the last ones
        # The step up where kernels begin another pass is greater for each of many sequences.
        enough = max(DECLINES, len(odds) // 2)
        # The least comes first; of equal ones that of the earlier sequence.
        heap = [(-each[0], seq.arrival, 1, seq) for seq, each in odds.items()]
        heapify(heap)
        for _ in range(most):
            if not heap or len(in_vain) == enough:
                break
            _, arrival, depth, seq = heappop(heap)
            probability = odds[seq][depth - 1]
            gain.add(seq, depth, probability)
            depths[seq] = depth
            in_vain.append((seq, depth, probability))
            rate = gain.rate
            if not predicts or rate > best:
                best = rate
                in_vain.clear()
            if depth < len(odds[seq]) and (predicts or depth < BLIND):
                heappush(heap, (-odds[seq][depth], arrival, depth + 1, seq))
        for seq, depth, probability in reversed(in_vain):
            gain.add(seq, depth, probability, times=-1)
            depths[seq] = depth - 1
        return {seq: depth for seq, depth in depths.items() if depth}

    def _rooms_of_model(self, decodes: list[Sequence], unknown: int, least: float) -> _Depths:
        """The sequences that the draft model is to guess behind, of whose guesses more should be right than of what is
        guessed already; and for how many each has room."""
        if self._draft_model is None:
            return {}
        rooms = _Depths()
        for seq in decodes:
            room = self._room(seq)
            if room < 1 or not self._draft_model.may_guess(seq):
                continue
            if seq.num_pending > unknown:  # nobody else can guess behind it
                rooms[seq] = room
                continue
            guesses = self._guesses_of(seq, least)
            if self._draft_model.expected(seq) > guesses.expected(len(guesses.tokens) - unknown):
                rooms[seq] = room
        return rooms

    def _room(self, seq: Sequence) -> int:
        """How many tokens may be guessed behind a sequence: its last one is sampled after the last guess."""
        # Masks after draft tokens cost their matcher more, and rank 0 would wait for them: one that was late has none.
        if seq.pool or seq.careful or seq in self._refused:
            return 0
        deepest = MAX_MASKED_DRAFTS if seq.sampling.masked else DEEPEST
        return min(seq.max_tokens - len(seq.tokens) - 1 - seq.num_unknown, deepest)

    def _odds(self, seq: Sequence, unknown: int, least: float) -> list[float]:
        """Those of the guesses behind the next `unknown` tokens of a sequence that there are, and room for."""
        if seq.num_pending > unknown:
            return []
        guesses = self._guesses_of(seq, least)
        return guesses.odds[unknown : min(len(guesses.tokens), unknown + self._room(seq))]

    def _guesses_of(self, seq: Sequence, least: float) -> Guesses:
        """Those of a sequence, which are made anew where few are left; not at every token where they could not pay, nor
        for many sequences in a step: on few cores that takes time from the workers."""
        guesses = self._guesses.get(seq)
        if guesses is None:
            guesses = self._guesses[seq] = Guesses(self._drafters.make(seq), self._of_all)
        if seq.forbidden[1]:
            guesses.tokens = allowed(seq, guesses.tokens)
        if len(guesses.tokens) >= _FEW:
            return guesses
        known = len(seq.tokens)
        rest = REST if guesses.hope <= least else min(guesses.rest, self._turn**2)
        if known - guesses.made_behind >= rest:
            guesses.guess(seq, self._vocab_size)
            if seq.sampling.masked:
                seq.guessed = known, guesses.tokens
        return guesses


def _without(odds: _Odds, others: _Depths) -> _Odds:
    return {seq: each for seq, each in odds.items() if seq not in others}
