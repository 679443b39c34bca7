"""The gain of draft tokens: tokens and seconds of a step that verifies them."""

from collections.abc import Sequence

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.row_times import RowTimes

UNKNOWN = 0.5  # acceptance rate while nothing is known
DECLINES = 3  # consecutive draft tokens, or rounds of them, that lower the rate of a step and end the search
MEMORY = 0.15  # weight of the last draft token in the acceptance rate of a sequence


class Gain:
    """Tokens per second of a step of sequences with one known token each, to which draft tokens are added."""

    def __init__(
        self, costs: CostModel, decodes: Sequence[Decode], times: RowTimes, *, pause: float, kept: float
    ) -> None:
        """Begin with a step without draft tokens.

        `times` corrects the predicted time. `pause` is the time for which workers idle because the plan waits for an
        answer, in seconds. `kept` is the ratio of accepted to expected draft tokens.
        """
        self._costs = costs
        self._times = times
        self._pause = pause
        self._kept = kept
        self._work = costs.begin()
        for seq in decodes:
            self._work.add(seq.position.next, 1, 1, adapter=seq.request.adapter)
        self._sequences = len(decodes)
        self._tokens = float(self._sequences)
        self._without = self._seconds
        self._drafting = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self._tokens / (self._seconds + self._drafting + self._pause)

    @property
    def rate_without(self) -> float:
        """Tokens per second of a step without draft tokens, for which no worker idles."""
        return self._sequences / self._without

    @property
    def least(self) -> float:
        """The minimum acceptance rate at which one more draft token of each sequence pays, per sequence."""
        more = self._sequences
        seconds = self._costs.predict(self._work.terms(0, more, more)) * self._times.ratio(self._work.tokens + more)
        return max(0.0, seconds / self._without - 1.0) / more / self._kept

    @property
    def _seconds(self) -> float:
        return self._costs.predict(self._work.terms()) * self._times.ratio(self._work.tokens)

    def add(self, seq: Decode, depth: int, probability: float, times: int = 1) -> None:
        """Add the draft token at `depth` of a sequence; with `times` -1 remove it.

        `probability` is the chance that this draft token and all before it are accepted.
        """
        self._tokens += times * probability * self._kept
        self._work.lengthen(seq.position.next, depth, times, adapter=seq.request.adapter)

    def drafting(self, seconds: float) -> None:
        """Add the time that workers take to make draft tokens before the step."""
        self._drafting += seconds
