"""Guesses from what the sequence has said before: what followed, the last time that the same tokens came."""

from collections.abc import Sequence

_KEY = 3  # tokens that must be the same
_LONGEST = 32  # beyond which one match is as good as another
_KEPT = 4  # places of each key, the latest
_AT_ONCE = 4096  # tokens taken in at once, so that a long prompt does not hold the event loop


class SuffixDrafter:
    """Looks up where the end of a sequence has occurred in it before, and continues as it went on there.

    Of the latest places that have its last tokens in common, the one that agrees with it for longest is taken, as in
    prompt lookup (Saxena, 2023) and SuffixDecoding (Oliaro et al., 2024). Guesses go on in themselves where they reach
    the end, so that what repeats is guessed as far as is wanted.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}  # of the token after each key
        self._known = _KEY  # tokens whose place is noted

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`, which begin with those of the call before."""
        end = len(tokens)
        until = min(end, self._known + _AT_ONCE)
        for place in range(self._known, until):
            places = self._places.setdefault(tuple(tokens[place - _KEY : place]), [])
            places.append(place)
            del places[:-_KEPT]
        self._known = max(self._known, until)
        if until < end:
            return []
        places = self._places.get(tuple(tokens[-_KEY:]), [])
        if end < _KEY or not places:
            return []
        place = max(places, key=lambda each: (_common(tokens, each), each))
        guesses: list[int] = []
        for index in range(place, place + most):
            guesses.append(tokens[index] if index < end else guesses[index - end])
        return guesses


def _common(tokens: Sequence[int], place: int) -> int:
    """How many tokens before `place` are those at the end."""
    for length in range(_KEY, min(place, _LONGEST)):
        if tokens[place - 1 - length] != tokens[-1 - length]:
            return length
    return min(place, _LONGEST)
