"""Acceptance rates of the front end's drafters, over all sequences."""

from numaserve.server.speculation.gain import UNKNOWN

_ENOUGH = 31  # matched tokens above which more make no difference
_MEMORY_OF_ALL = 0.02  # weight of the last draft token among the draft tokens of all sequences

Kind = tuple[str, int]  # the drafter, and the magnitude of the number of matched tokens


def kind_of(drafter: str, matched: int) -> Kind:
    """Return the kind of a draft token after `matched` matching tokens."""
    return drafter, min(matched, _ENOUGH).bit_length()


class AcceptanceRates:
    """The recent acceptance rate of each kind of draft token, given that the draft tokens before it were accepted."""

    def __init__(self) -> None:
        self._seen: dict[Kind, tuple[float, int]] = {}

    def of(self, kind: Kind) -> float:
        """Return the acceptance rate of a kind."""
        return self._seen.get(kind, (UNKNOWN, 0))[0]

    def saw(self, kind: Kind, *, accepted: bool) -> None:
        """Note whether a draft token was accepted."""
        before, seen = self._seen.get(kind, (UNKNOWN, 1))  # the assumption counts like one draft token
        self._seen[kind] = before + max(_MEMORY_OF_ALL, 1.0 / (seen + 1)) * (accepted - before), seen + 1
