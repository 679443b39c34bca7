"""The position of a sequence in a grammar, in this process, or in another if masks take long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numaserve.server.scheduler.matcher import MaskState
from numaserve.server.structured.matchers.confined_matcher import ConfinedMatcher
from numaserve.server.structured.matchers.matcher import GrammarMatcher


class MovableMatcher:
    """Implements `TokenMatcher`."""

    def __init__(self, local: GrammarMatcher, move: Callable[[list[int]], ConfinedMatcher]) -> None:
        """Start in this process. `move` creates a confined matcher that has accepted the given tokens."""
        self._matcher: GrammarMatcher | ConfinedMatcher = local
        self._move = move
        self._tokens: list[int] = []

    @property
    def is_confined(self) -> bool:
        """Whether another process does the work."""
        return self._matcher.is_confined

    def confine(self) -> None:
        """Move all further work to another process."""
        if not self._matcher.is_confined:
            self._matcher = self._move(self._tokens)
            self._tokens = []

    def accept(self, token: int) -> None:
        """Accept the sampled token. Raises `ConstraintFailed`."""
        self._matcher.accept(token)
        if not self._matcher.is_confined:
            self._tokens.append(token)

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        """Write the mask of the next position to the `nbytes` bytes at `address`. Raises `ConstraintFailed`."""
        return self._matcher.write_mask(address, nbytes)

    def fork(self) -> GrammarMatcher:
        """Return an independent matcher at the same position. Raises `ConstraintFailed`."""
        return self._matcher.fork()

    def would_accept(self, tokens: Sequence[int]) -> int:
        """Return the number of these tokens that may follow in sequence. Raises `ConstraintFailed`."""
        return self._matcher.would_accept(tokens)

    def forced(self) -> Sequence[int]:
        """Return the tokens of the only text that may come next. Raises `ConstraintFailed`."""
        return self._matcher.forced()
