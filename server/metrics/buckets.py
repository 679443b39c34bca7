"""Upper bounds of the histograms' buckets, in seconds or tokens. They are the same on every server: only equal bounds
can be added up over servers."""

from __future__ import annotations

_HOUR = 3600.0
_UP_TO_TWO_HOURS = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1200.0, 2400.0, _HOUR, 2 * _HOUR)

# A prompt of a hundred thousand tokens may take an hour on a processor, and so may the queue before it.
REQUEST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, *_UP_TO_TWO_HOURS)
QUEUE = (0.001, 0.0025, 0.005, *REQUEST)
GAP = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0, 60.0),
)
STEP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STAGE = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
    *(1.0, 5.0),
)
STEP_TOKENS = tuple(2**power for power in range(14))  # a step has at most 8192
LENGTH = tuple(2**power for power in range(21))  # to a million tokens
