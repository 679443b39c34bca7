"""The tokens of a step where the operator leaves them out."""

SHORT_STEP = 512
LONGER_STEPS = (1024, 2048)  # where memory allows it
# A shorter step is preferred if a token costs at most this many times as much as in the longest step.
ECONOMICAL_STEP_COST = 1.03
