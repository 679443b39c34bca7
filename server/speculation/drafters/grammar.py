"""Draft tokens from a constraint: the only text that the constraint allows next."""

from collections.abc import Sequence
from itertools import islice

from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import EachAlone, FrontEndDrafter


class GrammarDrafter:
    """Drafts the tokens that the constraint of a sequence forces.

    They are known since the mask before them was made, usually a step ago.
    """

    name = "grammar"
    matched = 0  # only the constraint is known

    def __init__(self, constraint: KnownConstraint) -> None:
        self._constraint = constraint

    def draft(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Return at most `limit` draft tokens after `tokens`."""
        begin, forced = self._constraint.forced
        known = len(tokens) - begin
        ahead = list(islice(forced, known + limit)) if known >= 0 else []
        return ahead[known:] if ahead[:known] == tokens[begin:] else []


def _make(seq: Decode, constraint: KnownConstraint) -> GrammarDrafter | None:
    return GrammarDrafter(constraint) if seq.request.sampling.masked else None


DRAFTER = FrontEndDrafter(place=2, source=lambda: EachAlone(_make))
