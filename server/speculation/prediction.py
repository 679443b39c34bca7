"""Guesses from what a client says that the answer will be: OpenAI's `prediction`."""

from array import array
from collections.abc import Sequence

from numaserve.server.speculation.match_cursor import MatchCursor

_TYPE = "I"
_BYTES = array(_TYPE).itemsize
_KEY = 2  # tokens that must be the same for a place far away to be found again
_TRIED = 16  # places where their bytes are, but not always at the beginning of a token
_NEAR = 4096  # tokens of the text, behind the place and before it, in which an answer is found again


class PredictionDrafter:
    """Follows an answer through the text that was predicted, and guesses that it goes on there.

    When the answer leaves the text, the drafter looks for it a token or two later (see `MatchCursor`). Failing that, it
    looks for the last two tokens of the answer: at the next place that has them, or at the first one before it. The
    event loop does not look through a long text at every token.
    """

    name = "prediction"

    def __init__(self, prediction: Sequence[int], prompt_len: int) -> None:
        self._text = prediction if isinstance(prediction, array) else array(_TYPE, prediction)
        self._bytes = self._text.tobytes()  # to be searched at the pace of memory
        self._trail = MatchCursor(self._text, 0, prompt_len, matched=_KEY)

    @property
    def matched(self) -> int:
        """How many of the last tokens the text has, too; at its beginning as many as tell a place are supposed to."""
        return self._trail.matched

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`: one list, to which tokens are added from call to call."""
        self._trail.follow(tokens)
        if not self._trail.is_there:
            self._look_for(tokens)
        place = self._trail.place
        return self._text[place : place + most].tolist() if self._trail.is_there else []

    def _look_for(self, tokens: Sequence[int]) -> None:
        """Find the last tokens farther away."""
        left = self._trail.place
        key = array(_TYPE, tokens[-_KEY:]).tobytes()
        found = self._find(key, left, left + _NEAR)
        if found is None:
            found = self._find(key, max(0, left - _NEAR), left)
        if found is not None:
            self._trail = MatchCursor(self._text, found + _KEY, len(tokens), matched=_KEY)

    def _find(self, key: bytes, begin: int, end: int) -> int | None:
        at = begin * _BYTES - 1
        for _ in range(_TRIED):
            at = self._bytes.find(key, at + 1, end * _BYTES + len(key))
            if at < 0:
                return None
            if at % _BYTES == 0:
                return at // _BYTES
        return None
