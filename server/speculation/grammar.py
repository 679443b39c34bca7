"""Guesses from what a constraint lets come next: the only text that it allows."""

from collections.abc import Sequence as ListOf
from itertools import islice

from numaserve.server.scheduler.sequence import Sequence


class GrammarDrafter:
    """Guesses the tokens that the constraint of a sequence forces.

    They are known from when the mask before them was made (`Sequence.forced`), which is a step ago as a rule.
    """

    name = "grammar"
    matched = 0  # nothing is known but what must follow

    def __init__(self, seq: Sequence) -> None:
        self._seq = seq

    def guess(self, tokens: ListOf[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`."""
        begin, forced = self._seq.forced
        known = len(tokens) - begin
        ahead = list(islice(forced, known + most)) if known >= 0 else []
        return ahead[known:] if ahead[:known] == tokens[begin:] else []
