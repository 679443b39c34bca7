"""Guesses from what a client says that the answer will be: OpenAI's `prediction`."""

from array import array
from collections.abc import Sequence

_TYPE = "I"
_BYTES = array(_TYPE).itemsize
_KEY = 2  # tokens that must be the same for the place to be found again
_TRIED = 16  # places where their bytes are, but not always at the beginning of a token
_NEAR = 4096  # tokens of the text, behind the place and before it, in which an answer is found again
_MANY = 32  # new tokens, of which only the last ones are looked at


class PredictionDrafter:
    """Follows an answer through the text that was predicted, and guesses that it goes on there.

    Where the answer leaves the text, it is found again by its last tokens: at the next place that has them and is near,
    or else at the first one near before it. The event loop does not look through a long text at every token.
    """

    name = "prediction"

    def __init__(self, prediction: Sequence[int], prompt_len: int) -> None:
        self._text = prediction if isinstance(prediction, array) else array(_TYPE, prediction)
        self._bytes = self._text.tobytes()  # to be searched at the pace of memory
        self._known = prompt_len
        self._place = 0  # in the text: where the answer is, as far as it is known
        self._is_there = True

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`: one list, to which tokens are added from call to call."""
        if len(tokens) - self._known > _MANY:  # resumed, as it was said elsewhere
            self._known, self._is_there = len(tokens) - _KEY, False
        for end in range(self._known, len(tokens)):
            self._follow(tokens, end)
        self._known = len(tokens)
        return self._text[self._place : self._place + most].tolist() if self._is_there else []

    def _follow(self, tokens: Sequence[int], end: int) -> None:
        """Take in the answer's token at index `end`."""
        if self._is_there and self._place < len(self._text) and self._text[self._place] == tokens[end]:
            self._place += 1
            return
        key = array(_TYPE, tokens[max(0, end + 1 - _KEY) : end + 1]).tobytes()
        found = self._find(key, self._place, self._place + _NEAR)
        if found is None:
            found = self._find(key, max(0, self._place - _NEAR), self._place)
        self._is_there = found is not None
        if found is not None:
            self._place = found + len(key) // _BYTES

    def _find(self, key: bytes, begin: int, end: int) -> int | None:
        at = begin * _BYTES - 1
        for _ in range(_TRIED):
            at = self._bytes.find(key, at + 1, end * _BYTES + len(key))
            if at < 0:
                return None
            if at % _BYTES == 0:
                return at // _BYTES
        return None
