"""The version of the bits that the workers compute."""

# Cached pages on disk are reused by servers of the same version. Raise it with every change that changes a bit of a
# page or of a logit, on any instruction set: `tests/e2e/test_golden_bits.py` fails then, and says how to renew its
# record. A change that moves code, or makes it faster with the same bits, leaves it: the caches stay.
NUMERICS_VERSION = 2
