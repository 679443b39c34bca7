"""Drafters for tests: each sequence's is made by a function, and no step begins anything."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import Drafter


class TokenDrafter(Protocol):
    """A drafter without a name."""

    def draft(self, tokens: list[int], most: int) -> list[int]: ...


@dataclass(frozen=True)
class Played:
    """A drafter with the name that all of a test's have."""

    draft: Callable[[list[int], int], list[int]]
    name: str = "played"
    matched: int = 0


@dataclass(frozen=True)
class Knowing:
    """A drafter that finds in `texts` what follows, and makes a draft token of each position and token of it."""

    texts: Callable[[], Iterable[list[int]]]
    made: Callable[[int, int], int]

    def draft(self, tokens: list[int], most: int) -> list[int]:
        """Return draft tokens of what follows `tokens`; some are for a token more than there is."""
        end = len(tokens)
        text = next((text for text in self.texts() if text[:end] == tokens), tokens)
        return [self.made(position, token) for position, token in enumerate(text[end : end + most], end)]


@dataclass(frozen=True)
class Each:
    """`make_one` is called with the digest of the scope of each sequence."""

    make_one: Callable[[str], TokenDrafter]

    def begin_step(self) -> None: ...

    def make(self, seq: Decode, constraint: KnownConstraint) -> list[Drafter]:
        """One for each sequence."""
        return [Played(self.make_one(seq.request.scope.digest).draft)]


class NoDrafters:
    """No drafter in the front end, where the workers have a draft model."""

    def begin_step(self) -> None: ...

    def make(self, seq: Decode, constraint: KnownConstraint) -> list[Drafter]:
        """None."""
        return []
