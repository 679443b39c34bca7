"""A sequence's walk through a grammar, here or, where that takes long, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numaserve.server.engine.masks.matcher import MaskState
from numaserve.server.structured.matchers.confined_matcher import ConfinedMatcher
from numaserve.server.structured.matchers.matcher import GrammarMatcher


class MovableMatcher:
    """Implements `TokenMatcher`."""

    def __init__(self, local: GrammarMatcher, move: Callable[[list[int]], ConfinedMatcher]) -> None:
        """`move` makes a confined matcher that has accepted these tokens."""
        self._matcher: GrammarMatcher | ConfinedMatcher = local
        self._move = move
        self._tokens: list[int] = []

    @property
    def is_confined(self) -> bool:
        """Whether its work is done in another process."""
        return self._matcher.is_confined

    def confine(self) -> None:
        """Have all further work done in another process."""
        if not self._matcher.is_confined:
            self._matcher = self._move(self._tokens)
            self._tokens = []

    def accept(self, token: int) -> None:
        """Take in the sampled token. Raises `ConstraintFailed`."""
        self._matcher.accept(token)
        if not self._matcher.is_confined:
            self._tokens.append(token)

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        """Write the bits of the next position to the `nbytes` bytes at `address`. Raises `ConstraintFailed`."""
        return self._matcher.write_mask(address, nbytes)

    def fork(self) -> GrammarMatcher:
        """Return one at the same place, which goes its own way. Raises `ConstraintFailed`."""
        return self._matcher.fork()

    def would_accept(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may come next, one after the other. Raises `ConstraintFailed`."""
        return self._matcher.would_accept(tokens)

    def forced(self) -> Sequence[int]:
        """Return tokens of the text that alone may come next. Raises `ConstraintFailed`."""
        return self._matcher.forced()
