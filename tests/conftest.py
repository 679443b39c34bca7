"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# No test is timed: on a busy machine any example may take long.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
