"""The place that is kept for newcomers, wherever requests wait."""

RESERVE = 1 / 8  # of what may wait, beyond it: only a client that has nothing there finds it


def reserve_of(requests: int) -> int:
    """The requests of newcomers that may wait beyond so many: one at least."""
    return max(1, int(requests * RESERVE))
