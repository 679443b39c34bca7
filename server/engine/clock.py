"""The clock of the engine and its parts."""

from collections.abc import Callable

# Monotonic seconds, of any origin: `time.monotonic`, or the time of an event loop that is simulated. Timers are the
# loop's own.
Clock = Callable[[], float]
