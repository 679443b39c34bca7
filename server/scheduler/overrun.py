"""The time that steps with images take beyond their prediction."""

_AT_FIRST = 1.25  # one step in ten: images arrive and are decoded on the cores of the steps
_LEAST, _MOST = 1.1, 2.0
_RISE = 0.3  # of the way to a step that took longer
_DECAY = 0.005  # of the way to the shortest, for each other step: one step in fifty keeps the factor where it is


class Overrun:
    """A factor that few steps exceed, of the time that they take to the time that was predicted.

    The prediction is right on average, which is too little for a limit: runs of the vision tower fill it closely, and
    another process decodes the next images meanwhile. A mean and a deviation were rejected, since the steps without a
    decoder next to them are many and hide the others.
    """

    def __init__(self) -> None:
        self.factor = _AT_FIRST

    def observe(self, predicted_s: float, seconds: float) -> None:
        """Note the time of a step."""
        factor = min(seconds / predicted_s, _MOST)
        if factor > self.factor:
            self.factor += _RISE * (factor - self.factor)
        else:
            self.factor += _DECAY * (_LEAST - self.factor)
