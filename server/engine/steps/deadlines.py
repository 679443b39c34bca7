"""The time after which a step counts as stuck."""

LEAST_S = 5.0  # a machine that stalls for a moment is no dead worker
TIMES_PREDICTED = 20


class StepDeadlines:
    """Deadlines of steps: a multiple of the predicted time, which allows for slowdown by other processes, within
    bounds.

    With one deadline for all steps, which must cover the longest step, a hung worker would block every stream for that
    long.
    """

    def __init__(self, longest_s: float) -> None:
        """Set the upper bound of all deadlines to `longest_s`, the operator's limit."""
        self.longest_s = longest_s

    def of(self, predicted_s: float | None) -> float:
        """Return the seconds allowed for a step with the predicted time `predicted_s`; None: no prediction yet."""
        if predicted_s is None:
            return self.longest_s
        return min(self.longest_s, max(LEAST_S, TIMES_PREDICTED * predicted_s))
