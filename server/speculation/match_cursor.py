"""A sequence on its way through a text that it repeats, with changes."""

from collections.abc import Sequence

_AHEAD = 8  # tokens of the text, behind the place where it was left, among which it is looked for at first
_LOST = 8  # tokens of the sequence behind which it is not looked for any more
_MANY = 64  # new tokens that are not followed: those of a sequence that is resumed, as it was said elsewhere


class MatchCursor:
    """Where in a text a sequence is that goes along it, and by how many tokens that is known.

    A sequence that leaves the text, since a word is changed in it, is mostly back some tokens later. There one token in
    common tells the place, as it could not in a whole text, and two tell it better. The text may be the sequence.
    """

    def __init__(self, text: Sequence[int], place: int, known: int, matched: int) -> None:
        """The sequence has `known` tokens, of which the last `matched` ones are those before `place` of the text."""
        self.text = text
        self.place = place
        self.matched = matched
        self._known = known
        self._lost = 0  # tokens since it was left

    @property
    def is_there(self) -> bool:
        """Whether the sequence has gone along the text up to its last token."""
        return self._lost == 0

    @property
    def is_lost(self) -> bool:
        """Whether it will not come back."""
        return self._lost > _LOST

    def follow(self, tokens: Sequence[int]) -> None:
        """Go on with the sequence, of which these are all tokens, and come back to the text where that is near."""
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
