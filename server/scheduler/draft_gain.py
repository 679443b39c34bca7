"""What a step gives, and takes, with guesses to verify."""

from numaserve.server.scheduler.costs.cost_model import CostModel
from numaserve.server.scheduler.costs.row_times import RowTimes
from numaserve.server.scheduler.sequence import Sequence

UNKNOWN = 0.5  # how often guesses are right of which nothing is known
DECLINES = 3  # guesses in a row, or rounds of them, by which a step gives less, beyond which no more are looked at
MEMORY = 0.15  # weight of the last guess among all that tell how often they are right


class Gain:
    """Tokens a second of a step of sequences with one known token each, to which guesses are added one by one."""

    def __init__(
        self, costs: CostModel, decodes: list[Sequence], times: RowTimes, *, pause: float, kept: float
    ) -> None:
        """`times` is what steps take of the predicted time, `pause` for how long workers rest for the guesses' sake,
        and `kept` how many guesses are kept of those that are expected to be."""
        self._costs = costs
        self._times = times
        self._pause = pause
        self._kept = kept
        self._work = costs.begin()
        for seq in decodes:
            self._work.add(seq.next_position, 1, 1)
        self._sequences = len(decodes)
        self._tokens = float(self._sequences)
        self._without = self._seconds
        self._drafting = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._tokens / (self._seconds + self._drafting + self._pause)

    @property
    def rate_without(self) -> float:
        """The same of a step without guesses, for which no worker rests."""
        return self._sequences / self._without

    @property
    def least(self) -> float:
        """How often a guess behind each has to be right to pay, by the number of sequences."""
        more = self._sequences
        seconds = self._costs.predict(self._work.terms(0, more, more)) * self._times.ratio(self._work.tokens + more)
        return max(0.0, seconds / self._without - 1.0) / more / self._kept

    @property
    def _seconds(self) -> float:
        return self._costs.predict(self._work.terms()) * self._times.ratio(self._work.tokens)

    def add(self, seq: Sequence, depth: int, probability: float, times: int = 1) -> None:
        """Add the `depth`-th guess behind a sequence, which is right, like those before it, with that probability; with
        `times` -1 take it away again."""
        self._tokens += times * probability * self._kept
        self._work.lengthen(seq.next_position, depth, times)

    def drafting(self, seconds: float) -> None:
        """Guessing takes so long, before the step."""
        self._drafting += seconds
