"""What is guessed of a sequence, and by what."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from numaserve.server.scheduler.draft_gain import MEMORY, UNKNOWN, expected
from numaserve.server.scheduler.sequence import Sequence

DEEPEST = 16  # guesses of a sequence in a step
REST = 16  # tokens for which nothing is guessed where no guess would pay


class Drafter(Protocol):
    """Guesses the tokens of one sequence."""

    @property
    def name(self) -> str:
        """By which guesses are counted, and how often they are right."""

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`: one list, to which tokens are added from call to call."""


class Drafters(Protocol):
    """The drafters of a server's sequences."""

    def begin_step(self) -> None:
        """Called before the guesses for a step are asked for: what takes long is to be divided over steps."""

    def make(self, seq: Sequence) -> ListOf[Drafter]:
        """The drafters of a sequence. Of equally good ones the first is heard."""


@dataclass(slots=True)
class Guesses:
    """What the drafters of a sequence guess, and how often that of each was right."""

    drafters: ListOf[Drafter]
    tokens: list[int] = field(default_factory=list)  # what is guessed of the next ones
    made_behind: int = -REST  # the tokens that were known when anything was guessed last
    rest: int = 1  # tokens after which more may be looked for: ever more as long as nothing is found
    drafter: str = ""  # whose they are
    often_right: dict[str, float] = field(default_factory=dict)  # lately, by drafter

    @property
    def right(self) -> float:
        """The probability that one of them is."""
        return self.often_right.get(self.drafter, UNKNOWN)

    def expected(self, depth: int) -> float:
        """How many of the first `depth` are right, and those before them."""
        return expected(self.right, depth)

    def guess(self, seq: Sequence, vocab_size: int) -> None:
        """Guess the next tokens, as that drafter does of whose guesses most should be right."""
        self.made_behind = len(seq.tokens)
        self.tokens, most = [], 0.0
        for each in self.drafters:
            guessed = allowed(seq, list(takewhile(vocab_size.__gt__, each.guess(seq.tokens, DEEPEST + 1))))
            likely = expected(self.often_right.get(each.name, UNKNOWN), len(guessed))
            if likely > most:
                self.tokens, self.drafter, most = guessed, each.name, likely
        self.rest = 1 if self.tokens else min(2 * self.rest, REST)

    def answered(self, tokens: list[int]) -> None:
        """Hold them against the next tokens. What is left of right ones is kept."""
        if not self.tokens:
            return
        for guess, token in zip(self.tokens, tokens, strict=False):
            before = self.right
            self.often_right[self.drafter] = before + MEMORY * ((guess == token) - before)
            if guess != token:
                self.tokens = []
                break
        self.tokens = self.tokens[len(tokens) :]


def allowed(seq: Sequence, guesses: list[int]) -> list[int]:
    """The guesses before the first that is known to be forbidden."""
    begin, forbidden = seq.forbidden
    known = len(seq.tokens) - begin  # of them
    count = len(forbidden) - known
    if 0 < count <= len(guesses) and forbidden[known:] == guesses[:count] and forbidden[:known] == seq.tokens[begin:]:
        return guesses[: count - 1]
    return guesses
