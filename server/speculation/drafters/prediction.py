"""Draft tokens from the answer that a client expects: OpenAI's `prediction`."""

from array import array
from collections.abc import Sequence

from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import EachAlone, FrontEndDrafter
from numaserve.server.speculation.match_cursor import MatchCursor

_TYPE = "I"
_BYTES = array(_TYPE).itemsize
_KEY = 2  # matching tokens that identify a place farther away
_TRIED = 16  # places whose bytes match, though not always at the start of a token
_NEAR = 4096  # tokens of the text before and after the place in which an answer is found again


class PredictionDrafter:
    """Follows an answer through the predicted text, and drafts the text's next tokens.

    When the answer leaves the text, the drafter searches for it one or two tokens later (see `MatchCursor`). Otherwise
    it searches for the last two tokens of the answer: first after the place, then before it. The event loop does not
    search a long text at every token.
    """

    name = "prediction"

    def __init__(self, prediction: Sequence[int], prompt_len: int) -> None:
        self._text = prediction if isinstance(prediction, array) else array(_TYPE, prediction)
        self._bytes = self._text.tobytes()  # searched at the speed of memory
        self._cursor = MatchCursor(self._text, 0, prompt_len, matched=_KEY)

    @property
    def matched(self) -> int:
        """The number of tokens before the place that match; at the beginning, as many as identify a place."""
        return self._cursor.matched

    def draft(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Return at most `limit` draft tokens after `tokens`, which is the same growing list in each call."""
        self._cursor.follow(tokens)
        if not self._cursor.is_there:
            self._look_for(tokens)
        place = self._cursor.place
        return self._text[place : place + limit].tolist() if self._cursor.is_there else []

    def _look_for(self, tokens: Sequence[int]) -> None:
        """Find the last tokens farther away."""
        left = self._cursor.place
        key = array(_TYPE, tokens[-_KEY:]).tobytes()
        found = self._find(key, left, left + _NEAR)
        if found is None:
            found = self._find(key, max(0, left - _NEAR), left)
        if found is not None:
            self._cursor = MatchCursor(self._text, found + _KEY, len(tokens), matched=_KEY)

    def _find(self, key: bytes, begin: int, end: int) -> int | None:
        at = begin * _BYTES - 1
        for _ in range(_TRIED):
            at = self._bytes.find(key, at + 1, end * _BYTES + len(key))
            if at < 0:
                return None
            if at % _BYTES == 0:
                return at // _BYTES
        return None


def _make(seq: Decode, _constraint: KnownConstraint) -> PredictionDrafter | None:
    return PredictionDrafter(seq.request.prediction, seq.position.prompt_len) if seq.request.prediction else None


DRAFTER = FrontEndDrafter(place=0, source=lambda: EachAlone(_make))
