"""The order in which slots were last used, as a linked list in arrays."""

from array import array

_ENDS = 0  # the place before the first slot and after the last one


class Recency:
    """Slots from the least to the most recently used. Each operation takes constant time.

    The links are two arrays, 8 bytes a slot. An `OrderedDict` was rejected: it takes 70 bytes more, and can move an
    entry to its ends only.
    """

    def __init__(self) -> None:
        # A slot's place is its number plus one.
        self._before = array("i", [_ENDS])
        self._after = array("i", [_ENDS])

    @property
    def first(self) -> int | None:
        """The slot that was not used for the longest time; None: there are no slots."""
        place = self._after[_ENDS]
        return None if place == _ENDS else place - 1

    def insert(self, slot: int, before: int | None = None) -> None:
        """Insert a slot that is not in the list right before another one, or as the most recently used."""
        grown = slot + 2 - len(self._before)
        if grown > 0:
            self._before.extend([_ENDS] * grown)
            self._after.extend([_ENDS] * grown)
        place, following = slot + 1, _ENDS if before is None else before + 1
        preceding = self._before[following]
        self._before[place], self._after[place] = preceding, following
        self._after[preceding] = self._before[following] = place

    def remove(self, slot: int) -> None:
        """Remove a slot that is in the list."""
        preceding, following = self._before[slot + 1], self._after[slot + 1]
        self._after[preceding], self._before[following] = following, preceding

    def move(self, slot: int, before: int | None = None) -> None:
        """Move a slot that is in the list right before another one, or make it the most recently used."""
        self.remove(slot)
        self.insert(slot, before)
