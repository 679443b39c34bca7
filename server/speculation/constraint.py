"""The constraint of a sequence, as far as its matcher has reported it."""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass


@dataclass(slots=True)
class KnownConstraint:
    """The last reports of a matcher. Each is about the tokens from an index on, and may be a step old."""

    forced: tuple[int, Iterable[int]] = 0, ()  # tokens of the only text that is allowed
    forbidden: tuple[int, ListOf[int]] = 0, ()  # draft tokens, of which only the last is forbidden

    def allowed(self, tokens: list[int], drafts: list[int]) -> list[int]:
        """Return the draft tokens after `tokens` that are not known to be forbidden."""
        begin, forbidden = self.forbidden
        known = len(tokens) - begin  # of them
        count = len(forbidden) - known
        if 0 < count <= len(drafts) and forbidden[known:] == drafts[:count] and forbidden[:known] == tokens[begin:]:
            return drafts[: count - 1]
        return drafts
