"""The estimate of the highest rate of requests that a server answers within latency limits."""

from collections.abc import Mapping

import numpy as np


def rate_within(
    prefill_s: float, decode_s: Mapping[int, float], output_len: int, *, ttft_s: float, tpot_s: float
) -> float:
    """Return the requests per second, 0 if one request alone exceeds a limit.

    `prefill_s` are the seconds of a prompt; `decode_s` has the seconds of a step of decoding, by the number of
    sequences in ascending order. Prompts and answers take the cores one after the other. The queue is not counted:
    arrivals are as if evenly spaced.
    """
    if prefill_s > ttft_s:
        return 0.0
    best, known = 0.0, [*decode_s]
    for batch in range(1, known[-1] + 1):
        step_s = float(np.interp(batch, known, [*decode_s.values()]))
        if step_s <= tpot_s:
            # A request takes its prompt, and its part of a step for each token.
            saturated = 1 / (prefill_s + output_len * step_s / batch)
            # Prompts lengthen the time per token: a step needs `step_s` of each `tpot_s`.
            best = max(best, min(saturated, (1 - step_s / tpot_s) / prefill_s))
    return best
