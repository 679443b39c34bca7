"""Corrections of the predicted time of a step, by its number of rows."""

from bisect import bisect_left, insort

_SINGLE = 32  # the most rows with a place of their own; above, eight numbers of rows share a place
_STRANGE = 1.5  # the largest factor between an observed ratio and the ratio before it that counts
_MEMORY = 0.2  # weight of the last step among the steps with the same number of rows
_MEMORY_OF_ALL = 0.05  # weight of the last step among all steps
_FORGOTTEN = 0.003  # part of a number's excess over other steps that each step with another number removes


class RowTimes:
    """The ratio of actual to predicted time, by the number of rows.

    The cost model is linear in rows, and products are not: kernels multiply several rows at once, and one more row
    starts another pass, or another tile. A number of rows that was observed keeps its ratio. A number that was not
    observed takes the ratios of its neighbours. The ratio of a number that is no longer observed, and was worse than
    other steps, approaches theirs: otherwise some bad steps would be the last of their kind.
    """

    def __init__(self) -> None:
        self._usual = 1.0  # of all recent steps
        self._seen: dict[int, tuple[float, int]] = {}  # the ratio, and the step in which it was observed
        self._order: list[int] = []
        self._steps = 0

    def took(self, rows: int, ratio: float) -> None:
        """Note the ratio of actual to predicted time of a step."""
        self._steps += 1
        place = _place(rows)
        before = self.ratio(rows)
        # One step that shared the cores with another program shows nothing about its rows; many in a row do.
        ratio = min(max(ratio, before / _STRANGE), before * _STRANGE)
        if place not in self._seen:
            insort(self._order, place)
        self._seen[place] = before + _MEMORY * (ratio - before), self._steps
        self._usual += _MEMORY_OF_ALL * (ratio - self._usual)

    def ratio(self, rows: int) -> float:
        """Return the expected ratio of actual to predicted time of a step."""
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
