"""What is guessed of a sequence, and by what."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from operator import mul
from typing import Protocol

from numaserve.server.scheduler.draft_gain import UNKNOWN
from numaserve.server.scheduler.sequence import Sequence

DEEPEST = 16  # guesses of a sequence in a step
REST = 16  # tokens for which nothing is guessed where no guess would pay
_ENOUGH = 31  # tokens that match, from which on more tell nothing
_MEMORY = 0.1  # weight of the last guess of a sequence among those before it
_MEMORY_OF_LOOKS = 0.25  # the same of the last look among those before it
_MEMORY_OF_ALL = 0.02  # the same among those of all sequences, by which new ones are judged


class Drafter(Protocol):
    """Guesses the tokens of one sequence."""

    @property
    def name(self) -> str:
        """By which guesses are counted."""

    @property
    def matched(self) -> int:
        """How many of the last tokens were the same where the last guesses come from: the more, the likelier these."""

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`: one list, to which tokens are added from call to call."""


class Drafters(Protocol):
    """The drafters of a server's sequences."""

    def begin_step(self) -> None:
        """Called before the guesses for a step are asked for: what takes long is to be divided over steps."""

    def make(self, seq: Sequence) -> ListOf[Drafter]:
        """The drafters of a sequence. Of equally good ones the first is heard."""


_Sort = tuple[str, int]  # of guesses: the drafter, and about how many tokens had matched


class Rightness:
    """How often guesses of each sort were right lately, and those before them: in all sequences."""

    def __init__(self) -> None:
        self._seen: dict[_Sort, tuple[float, int]] = {}

    def of(self, sort: _Sort) -> float:
        """The probability that one is right if those before it are."""
        return self._seen.get(sort, (UNKNOWN, 0))[0]

    def saw(self, sort: _Sort, *, right: bool) -> None:
        """Learn whether one was right."""
        before, seen = self._seen.get(sort, (UNKNOWN, 1))  # what is supposed counts like one guess
        self._seen[sort] = before + max(_MEMORY_OF_ALL, 1.0 / (seen + 1)) * (right - before), seen + 1


@dataclass(slots=True)
class Guesses:
    """What the drafters of a sequence guess, and how often guesses of each sort were right.

    Guesses of one drafter are not all alike: behind three tokens that have come before half of them may be right, and
    behind thirty almost all. Each that is right makes it a token more that matched, for the next one.
    """

    drafters: ListOf[Drafter]
    of_all: Rightness
    tokens: list[int] = field(default_factory=list)  # what is guessed of the next ones
    made_behind: int = -REST  # the tokens that were known when anything was guessed last
    rest: int = 1  # tokens after which more may be looked for: ever more as long as nothing is found
    drafter: str = ""  # whose they are
    _matched: int = 0  # tokens before them
    _odds: list[float] | None = None  # of `tokens`; None until they are wanted
    _last: float = 1.0  # the probability of the first guess, the last time that any was found
    _lately: float = 1.0  # the same of the last times together
    _own: dict[_Sort, float] = field(default_factory=dict)  # how often those of each sort were right here, lately

    @property
    def hope(self) -> float:
        """How often what will be found next should be right: as often as what was found last, or lately."""
        return max(self._last, self._lately)

    @property
    def odds(self) -> list[float]:
        """The probability of each of them that it is right, and all before it."""
        if self._odds is None:
            self._odds = self._odds_of(self.drafter, self._matched, len(self.tokens))
        return self._odds

    def expected(self, depth: int) -> float:
        """How many of the first `depth` are right, and those before them."""
        return sum(self.odds[: max(0, depth)])

    def guess(self, seq: Sequence, vocab_size: int) -> None:
        """Guess the next tokens, as that drafter does of whose guesses most should be right."""
        self.made_behind = len(seq.tokens)
        self.tokens, most = [], 0.0
        for each in self.drafters:
            guessed = allowed(seq, list(takewhile(vocab_size.__gt__, each.guess(seq.tokens, DEEPEST + 1))))
            odds = self._odds_of(each.name, each.matched, len(guessed))
            if (likely := sum(odds)) > most:
                self.tokens, self._odds, most = guessed, odds, likely
                self.drafter, self._matched = each.name, each.matched
        if self.tokens:
            self._last = self.odds[0]
            self._lately += _MEMORY_OF_LOOKS * (self._last - self._lately)
        self.rest = 1 if self.tokens else min(2 * self.rest, REST)

    def answered(self, tokens: list[int]) -> None:
        """Hold them against the next tokens. What is left of right ones is kept."""
        if not self.tokens:
            return
        for guess, token in zip(self.tokens, tokens, strict=False):
            sort, right = _sort(self.drafter, self._matched), guess == token
            self._own[sort] = (before := self._right(sort)) + _MEMORY * (right - before)
            self.of_all.saw(sort, right=right)
            self._matched += 1
            if not right:
                self.tokens = []
                break
        self.tokens = self.tokens[len(tokens) :]
        self._odds = None

    def _odds_of(self, drafter: str, matched: int, guesses: int) -> list[float]:
        sorts = (_sort(drafter, each) for each in range(matched, matched + guesses))
        return list(accumulate(map(self._right, sorts), mul))

    def _right(self, sort: _Sort) -> float:
        return self._own[sort] if sort in self._own else self.of_all.of(sort)


def _sort(drafter: str, matched: int) -> _Sort:
    return drafter, min(matched, _ENOUGH).bit_length()


def allowed(seq: Sequence, guesses: list[int]) -> list[int]:
    """The guesses before the first that is known to be forbidden."""
    begin, forbidden = seq.forbidden
    known = len(seq.tokens) - begin  # of them
    count = len(forbidden) - known
    if 0 < count <= len(guesses) and forbidden[known:] == guesses[:count] and forbidden[:known] == seq.tokens[begin:]:
        return guesses[: count - 1]
    return guesses
