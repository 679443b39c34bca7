"""The time after which a step counts as stuck."""

LEAST_S = 5.0  # a machine that stands still for a moment is no dead worker
TIMES_PREDICTED = 20


class StepDeadlines:
    """Deadlines of steps: as many times what a step should take as others may slow it down, within bounds.

    With one deadline for all, which has to be long enough for the longest, a worker that hangs would hold every stream
    up for as long.
    """

    def __init__(self, longest_s: float) -> None:
        """`longest_s` is the operator's bound."""
        self.longest_s = longest_s

    def of(self, predicted_s: float | None) -> float:
        """Seconds for a step that should take `predicted_s`; None: nobody can tell yet."""
        if predicted_s is None:
            return self.longest_s
        return min(self.longest_s, max(LEAST_S, TIMES_PREDICTED * predicted_s))
