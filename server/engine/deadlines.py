"""The time after which a step counts as stuck."""

LEAST_S = 5.0  # a machine that stands still for a moment is no dead worker
TIMES_PREDICTED = 20


class StepDeadlines:
    """Deadlines of steps: as many times what a step should take as others may slow it down, within bounds.

    With one deadline for all, which has to be long enough for the longest, a worker that hangs would hold every stream
    up for as long.
    """

    def __init__(self, longest_s: float, mask_s: float) -> None:
        """`longest_s` is the operator's bound; a step may wait `mask_s` for masks besides its work."""
        self.longest_s = longest_s
        self._mask_s = mask_s

    def of(self, predicted_s: float | None, *, masked: bool) -> float:
        """Seconds for a step that should take `predicted_s`; None: nobody can tell yet."""
        if predicted_s is None:
            return self.longest_s
        work_s = max(LEAST_S, TIMES_PREDICTED * predicted_s)
        return min(self.longest_s, work_s + (self._mask_s if masked else 0.0))
