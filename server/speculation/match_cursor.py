"""The place of a sequence in a text that it repeats with changes."""

from collections.abc import Sequence

_AHEAD = 8  # tokens of the text after the place where it was left, in which the sequence is searched first
_LOST = 8  # tokens of the sequence after which the search ends
_MANY = 64  # new tokens above which the text is not followed: a resumed sequence was computed elsewhere


class MatchCursor:
    """The place in a text that a sequence follows, and the number of tokens that match before it.

    A sequence that leaves the text, for example at a changed word, mostly returns some tokens later. Near the place one
    common token identifies the new place, as it could not in a whole text, and two identify it better. The text may be
    the sequence.
    """

    def __init__(self, text: Sequence[int], place: int, known: int, matched: int) -> None:
        """Start at `place`: the last `matched` of the sequence's `known` tokens are the tokens before it."""
        self.text = text
        self.place = place
        self.matched = matched
        self._known = known
        self._lost = 0  # tokens since it was left

    @property
    def is_there(self) -> bool:
        """True if the sequence has followed the text up to its last token."""
        return self._lost == 0

    @property
    def is_lost(self) -> bool:
        """True if the sequence will not return."""
        return self._lost > _LOST

    def follow(self, tokens: Sequence[int]) -> None:
        """Follow the sequence, which has all these tokens, and return to the text where that is near."""
        new, end = range(self._known, len(tokens)), len(self.text)
        if self.is_there and len(new) <= _MANY:
            for index in new:
                if self.place == end or self.text[self.place] != tokens[index]:
                    break
                self.place += 1
                self.matched += 1
                self._known += 1
        self._lost += len(tokens) - self._known
        self._known = len(tokens)
        if 0 < self._lost <= _LOST:
            self._come_back(tokens)

    def _come_back(self, tokens: Sequence[int]) -> None:
        end = min(len(self.text), self.place + _AHEAD + self._lost)
        if self.text is tokens:
            end = min(end, len(tokens) - 1)
        places = [at for at in range(self.place, end) if self.text[at] == tokens[-1]]
        if places:
            pairs = [at for at in places if at > 0 and len(tokens) > 1 and self.text[at - 1] == tokens[-2]]
            self.place, self.matched = (pairs or places)[0] + 1, 2 if pairs else 1
            self._lost = 0
