"""What steps take of the time that the model of costs predicts, by how many rows they have."""

from bisect import bisect_left, insort

_SINGLE = 32  # rows up to which each number of them is told apart; from there on, eight
_STRANGE = 1.5  # times what steps took lately: what is further off, or as far below, counts as if it were that far
_MEMORY = 0.2  # weight of the last step of so many rows among those before it
_MEMORY_OF_ALL = 0.05  # the same among all steps
_FORGOTTEN = 0.003  # of what is known of a number of rows, with each step that has another


class RowTimes:
    """The ratio of times taken and predicted, by the number of rows.

    The model of costs is linear in rows, and products are not: kernels multiply some rows at once, and one row more
    begins another pass, or another tile. What was seen of a number of rows is taken for what it will take again, and a
    number that was not seen for what those next to it take. What is not seen any more, and was worse than steps
    usually are, comes nearer to them: else some bad steps would be the last of their kind.
    """

    def __init__(self) -> None:
        self._usual = 1.0  # of all steps, lately
        self._seen: dict[int, tuple[float, int]] = {}  # the ratio, and in which step that was
        self._order: list[int] = []
        self._steps = 0

    def took(self, rows: int, ratio: float) -> None:
        """Learn what a step took of the predicted time."""
        self._steps += 1
        place = _place(rows)
        before = self.ratio(rows)
        # One step with some other program beside it says nothing of its rows; many of them in a row do.
        ratio = min(max(ratio, before / _STRANGE), before * _STRANGE)
        if place not in self._seen:
            insort(self._order, place)
        self._seen[place] = before + _MEMORY * (ratio - before), self._steps
        self._usual += _MEMORY_OF_ALL * (ratio - self._usual)

    def ratio(self, rows: int) -> float:
        """What a step of so many rows will take of the predicted time."""
        place = _place(rows)
        index = bisect_left(self._order, place)
        around = self._order[max(0, index - 1) : index + 1]
        if not around:
            return 1.0
        if place == around[-1] or len(around) == 1:
            return self._ratio_at(around[-1])
        below, above = around
        part = (place - below) / (above - below)
        return (1.0 - part) * self._ratio_at(below) + part * self._ratio_at(above)

    def _ratio_at(self, place: int) -> float:
        ratio, seen = self._seen[place]
        if ratio <= self._usual:
            return ratio
        return self._usual + (ratio - self._usual) * (1.0 - _FORGOTTEN) ** (self._steps - seen)


def _place(rows: int) -> int:
    return rows if rows <= _SINGLE else _SINGLE + (rows - _SINGLE + 7) // 8
