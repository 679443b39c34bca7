"""The draft tokens of one sequence in the front end, and their acceptance rates."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from operator import mul

from numaserve.server.speculation.acceptance import AcceptanceRates, Kind, kind_of
from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.drafter import Drafter
from numaserve.workers.interface.drafters import MAX_DRAFTS

REST = 16  # tokens after which the search starts again where no draft token would pay
_MEMORY = 0.1  # weight of the last draft token of a sequence
_MEMORY_OF_LOOKS = 0.25  # weight of the last search of a sequence


@dataclass(slots=True)
class SequenceDrafts:
    """The drafters of a sequence, their draft tokens, and the acceptance rate of each kind of draft token.

    The draft tokens of one drafter are not alike: half of them may be accepted after three matching tokens, and almost
    all after thirty. Each accepted draft token is one more matching token for the next one.
    """

    drafters: ListOf[Drafter]
    of_all: AcceptanceRates
    constraint: KnownConstraint
    tokens: list[int] = field(default_factory=list)  # drafted after the known tokens
    made_after: int = -REST  # number of known tokens at the last search
    rest: int = 1  # tokens until the next search; grows while nothing is found
    drafter: str = ""  # of `tokens`
    _matched: int = 0  # tokens before `tokens`
    _odds: list[float] | None = None  # of `tokens`; None until needed
    _last: float = 1.0  # the odds of the first draft token of the last search that found any
    _recent: float = 1.0  # the same of the last such searches together
    _own: dict[Kind, float] = field(default_factory=dict)  # recent acceptance rates of this sequence

    @property
    def hope(self) -> float:
        """The expected acceptance rate of the next search: that of the last one, or of recent ones."""
        return max(self._last, self._recent)

    @property
    def odds(self) -> list[float]:
        """For each draft token, the probability that it and all before it are accepted."""
        if self._odds is None:
            self._odds = self._odds_of(self.drafter, self._matched, len(self.tokens))
        return self._odds

    def expected(self, depth: int) -> float:
        """Return the expected number of accepted tokens among the first `depth` draft tokens."""
        return sum(self.odds[: max(0, depth)])

    def search(self, known: list[int], vocab_size: int, placeholder: int | None = None) -> None:
        """Draft the tokens after the `known` ones with the drafter that expects most accepted tokens.

        Draft tokens end before a token that is not below `vocab_size`, and before the `placeholder` of images. Prompts
        are full of placeholders, and answers hardly ever have one.
        """
        self.made_after = len(known)
        self.tokens, most = [], 0.0
        for each in self.drafters:
            drafted = list(takewhile(vocab_size.__gt__, each.draft(known, MAX_DRAFTS + 1)))
            if placeholder in drafted:
                del drafted[drafted.index(placeholder) :]
            drafted = self.constraint.allowed(known, drafted)
            odds = self._odds_of(each.name, each.matched, len(drafted))
            if (likely := sum(odds)) > most:
                self.tokens, self._odds, most = drafted, odds, likely
                self.drafter, self._matched = each.name, each.matched
        if self.tokens:
            self._last = self.odds[0]
            self._recent += _MEMORY_OF_LOOKS * (self._last - self._recent)
        self.rest = 1 if self.tokens else min(2 * self.rest, REST)

    def drop_forbidden(self, known: list[int]) -> None:
        """Drop the first draft token after the `known` tokens that is forbidden, and all after it."""
        if self.constraint.forbidden[1]:
            self.tokens = self.constraint.allowed(known, self.tokens)

    def answered(self, tokens: list[int]) -> None:
        """Compare the draft tokens with the next tokens, and keep the rest of accepted ones."""
        if not self.tokens:
            return
        for draft, token in zip(self.tokens, tokens, strict=False):
            kind, accepted = kind_of(self.drafter, self._matched), draft == token
            self._own[kind] = (before := self._rate(kind)) + _MEMORY * (accepted - before)
            self.of_all.saw(kind, accepted=accepted)
            self._matched += 1
            if not accepted:
                self.tokens = []
                break
        self.tokens = self.tokens[len(tokens) :]
        self._odds = None

    def _odds_of(self, drafter: str, matched: int, count: int) -> list[float]:
        kinds = (kind_of(drafter, each) for each in range(matched, matched + count))
        return list(accumulate(map(self._rate, kinds), mul))

    def _rate(self, kind: Kind) -> float:
        return self._own[kind] if kind in self._own else self.of_all.of(kind)
