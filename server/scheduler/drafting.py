"""Drafts: guesses of the tokens that come next, which one step verifies all at once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from numaserve.server.scheduler.cost_model import CostModel
from numaserve.server.scheduler.sequence import Sequence

_DEEPEST = 16  # guesses of a sequence in a step
_BLIND = 3  # the same while nothing is known of the time of a step
_MEMORY = 0.15  # weight of the last guess among all that tell how often they are right
# Seconds for which the workers wait when a plan is made only after the answer to the one before it.
_PAUSE = 5e-4


class Drafter(Protocol):
    """Guesses the tokens of one sequence."""

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`, which begin with those of the call before."""


@dataclass(slots=True)
class _Guesses:
    drafter: Drafter
    behind: int = 0  # the tokens that were known when they were made
    tokens: list[int] = field(default_factory=list)
    right: float = 0.5  # how often they are, lately


class Drafting:
    """Which guesses are worth a place in the next step, and when to wait for an answer for their sake.

    A verified row has the bits that it would have alone, so guesses change when tokens come, and never which. Those of
    all sequences together are chosen greedily: one more as long as it makes the step give more tokens a second, by how
    often the sequence's guesses were right and by what the step will cost (`CostModel`). Every guess is held against
    the token that came, chosen or not, so that it costs nothing to learn that they are no good.

    A plan that is made before the answer to the last one knows nothing that a guess could follow. So a step that would
    gain by guesses is planned after the answer, though the workers wait for it meanwhile.
    """

    def __init__(self, costs: CostModel, make: Callable[[], Drafter]) -> None:
        self._costs = costs
        self._make = make
        self._guesses: dict[Sequence, _Guesses] = {}

    def choose(self, decodes: list[Sequence], most: int) -> dict[Sequence, list[int]]:
        """The guesses to verify in the next step, at most so many, of sequences whose every token is known."""
        depths = self._depths(decodes, most, unknown=0)
        return {seq: self._guesses[seq].tokens[:depth] for seq, depth in depths.items()}

    def waits(self, running: list[Sequence], most: int) -> bool:
        """Whether the answer that is awaited will probably be worth the wait: it lets more be guessed."""
        return bool(self._depths([seq for seq in running if seq.num_pending], most, unknown=1))

    def answered(self, seq: Sequence, tokens: list[int]) -> None:
        """Hold what was guessed against the next tokens of the sequence, which it has got."""
        guesses = self._guesses.get(seq)
        if guesses is None or guesses.behind != len(seq.tokens) - len(tokens):
            return
        for guess, token in zip(guesses.tokens, tokens, strict=False):
            guesses.right += _MEMORY * ((guess == token) - guesses.right)
            if guess != token:
                break

    def forget(self, seq: Sequence) -> None:
        """Forget a sequence that has ended."""
        self._guesses.pop(seq, None)

    def _depths(self, decodes: list[Sequence], most: int, *, unknown: int) -> dict[Sequence, int]:
        """How many guesses of each sequence to verify once its next `unknown` tokens are known; none is left out."""
        candidates = sorted(self._candidates(decodes, unknown), key=lambda each: (-each[0], each[1]))[: max(0, most)]
        if not candidates:
            return {}
        if not self._costs.predicts:
            return _counted(seq for _, depth, seq in candidates if depth <= _BLIND)
        work = self._costs.begin()
        for seq in decodes:
            work.add(seq.num_computed, 1, 1)
        tokens, without = float(len(decodes)), self._costs.predict(work.terms())
        rate, kept = tokens / (without + _PAUSE), 0
        for gain, depth, seq in candidates:
            work.lengthen(seq.num_computed, depth)
            tokens += gain
            better = tokens / (self._costs.predict(work.terms()) + _PAUSE)
            if better <= rate:  # and worse with each one more: they gain less and less
                break
            rate, kept = better, kept + 1
        worth = rate > len(decodes) / without
        return _counted(seq for _, _, seq in candidates[:kept]) if worth else {}

    def _candidates(self, decodes: list[Sequence], unknown: int) -> Iterable[tuple[float, int, Sequence]]:
        """Of each guess the probability that it and those before it are right, its depth, and its sequence."""
        for seq in decodes:
            if not _may_draft(seq):
                continue
            guesses = self._guesses_of(seq)
            # The last token of a sequence is sampled after the last guess.
            room = seq.max_tokens - len(seq.tokens) - 1
            for index in range(unknown, min(len(guesses.tokens), room, unknown + _DEEPEST)):
                yield guesses.right ** (index + 1), index - unknown + 1, seq

    def _guesses_of(self, seq: Sequence) -> _Guesses:
        guesses = self._guesses.get(seq)
        if guesses is None:
            guesses = self._guesses[seq] = _Guesses(self._make())
        if guesses.behind != len(seq.tokens):
            guesses.behind = len(seq.tokens)
            guesses.tokens = guesses.drafter.guess(seq.tokens, _DEEPEST + 1)
        return guesses


def _may_draft(seq: Sequence) -> bool:
    """Whether its rows can be sampled several at once: workers have one mask, and one set of named tokens, a slot."""
    return not (seq.sampling.masked or seq.sampling.token_ids_logprob or seq.pool)


def _counted(sequences: Iterable[Sequence]) -> dict[Sequence, int]:
    counts: dict[Sequence, int] = {}
    for seq in sequences:
        counts[seq] = counts.get(seq, 0) + 1
    return counts
