"""The clock of the engine and its parts."""

from collections.abc import Callable

# Monotonic seconds of any origin: `time.monotonic`, or the time of a simulated event loop. Timers always use the event
# loop's own time.
Clock = Callable[[], float]
