"""The prices of draft tokens, as far as the cost model does not know them: waits, row counts and disappointments."""

from collections.abc import Sequence

from numaserve.server.costs.cost_model import CostModel
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.gain import MEMORY, Gain
from numaserve.server.speculation.row_times import RowTimes

# Idle seconds of the workers when a plan waits for the answer before it: for each sequence of both plans, while nothing
# was observed. The time of a step apart from its sequences counts as `_PAUSE_APART` sequences.
_PAUSE = 1e-4
_PAUSE_APART = 4
_OUTLIER = 4.0  # the largest factor of the usual value that counts
_USUAL_OUTPUT = 200.0  # output tokens of a sequence, while none has ended
_MEMORY_OF_ENDS = 0.05  # weight of the last sequence that ended
_RETRY = 0.01  # part of a bad experience with draft tokens that each step without any removes


class Prices:
    """Learns from the idle time of workers, the time of steps by their rows, and kept draft tokens."""

    def __init__(self, costs: CostModel) -> None:
        """Begin without any experience. `costs` are those of the served model."""
        self._costs = costs
        self._pause = _PAUSE
        self._times = RowTimes()
        self._kept = 1.0  # ratio of accepted to expected draft tokens
        self._usual_output = _USUAL_OUTPUT

    @property
    def are_known(self) -> bool:
        """True if the cost model predicts."""
        return self._costs.predicts

    def gain(self, decodes: Sequence[Decode], *, waits: bool) -> Gain:
        """Return the gain of a step without draft tokens. The step `waits` for an answer like a step with some."""
        pause = (self._pause if waits else 0.0) * (len(decodes) + _PAUSE_APART)
        # Sequences know by themselves where more draft tokens were kept than expected.
        return Gain(self._costs, decodes, self._times, pause=pause, kept=min(1.0, self._kept))

    def may_be_last(self, sequences: int, expected: float, seconds: float) -> bool:
        """Return whether a plan after a step with draft tokens should wait for the answer.

        All sequences of the step, which takes `seconds`, may have ended, the likelier the more draft tokens are
        expected to be accepted. The plan would then be wasted.
        """
        ends = min(1.0, (1.0 + expected / sequences) / self._usual_output)
        return seconds * ends**sequences > self._pause * (sequences + _PAUSE_APART)

    def idled(self, seconds: float, sequences: int) -> None:
        """Note for how long the workers idled before and after a step."""
        # A step after which many requests came at once says little about the next one.
        each = min(seconds / (sequences + _PAUSE_APART), _OUTLIER * self._pause)
        self._pause += MEMORY * (each - self._pause)

    def took(self, ratio: float, rows: int | None, kept: int | None, expected: float) -> None:
        """Note the ratio of actual to predicted time of a step, and what became of its draft tokens.

        Draft tokens that seem good are chosen more often if they seem better than they are: `kept` is compared with
        the `expected` number. None for `rows` and `kept` are as in `StepAnswered`.
        """
        if rows is not None and ratio > 0.0:
            self._times.took(rows, ratio)
        if kept is None:
            self._pause += _RETRY * (min(_PAUSE, self._pause) - self._pause)
            self._kept += _RETRY * (1.0 - self._kept)
        elif expected > 0.0:
            self._kept += MEMORY * (min(kept / expected, _OUTLIER) - self._kept)

    def ended(self, output: int) -> None:
        """Note the number of output tokens of a sequence that has ended."""
        self._usual_output += _MEMORY_OF_ENDS * (output - self._usual_output)
