"""The golden record: what tiny checkpoints come to, bit for bit, in every family, format and division among ranks.

It guards changes that must change nothing: the list of native nodes, the packed bytes, the planned memory, the counted
operations, and the log-probabilities of some prompts. `cases.py` says of what, `adapter.py` is all that knows the
packages under test, `record.py` writes and compares. `python -m tests.support.golden check` tells what differs.
"""
