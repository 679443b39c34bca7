"""The reasons for marks, and the use that sequences make of each."""

import enum
from collections import Counter

_FEW = 16  # marks of a kind from which nothing is concluded
_MANY = 256  # marks of a kind after which older ones count for half
_RARELY = 4  # a kind is rare if the other is found more than this many times as often


class MarkKind(enum.IntEnum):
    """The reason for a mark."""

    PREFIX = 0  # sequences share what comes before it
    PROMPT = 1  # it is shortly before the end of a prompt
    OUTPUT = 2  # it is the last one of an output
    LONG = 3  # it divides a long prompt


TURN_KINDS = (MarkKind.PROMPT, MarkKind.OUTPUT)  # of which each turn of a conversation has both, and needs one


class KindUse:
    """The fraction of marks of each kind that sequences find.

    The next turn of a conversation finds the mark in the output if the template keeps the whole output, and the mark in
    the prompt if the template strips reasoning. Which of both it is shows after a few turns. Then a session needs one
    snapshot instead of two. If conversations of both sorts come, neither kind is rare.

    A mark is found if it is the deepest on the path of a later sequence, even if it has no snapshot any more. Otherwise
    a kind that loses its snapshots first could never show that it is needed.
    """

    def __init__(self) -> None:
        self._made: Counter[MarkKind] = Counter()
        self._found: Counter[MarkKind] = Counter()

    def made(self, kind: MarkKind) -> None:
        """Count a mark."""
        self._made[kind] += 1
        if self._made[kind] == _MANY:
            self._made[kind] //= 2
            self._found[kind] //= 2

    def found(self, kind: MarkKind) -> None:
        """Count the first sequence that finds a mark."""
        self._found[kind] += 1

    def is_rare(self, kind: MarkKind) -> bool:
        """Return whether marks of this kind are found much less often than those of the other kind of a turn."""
        if kind not in TURN_KINDS or self._made[kind] < _FEW:
            return False
        best = max(self._found[each] / self._made[each] for each in TURN_KINDS if self._made[each] >= _FEW)
        return _RARELY * self._found[kind] < best * self._made[kind]
