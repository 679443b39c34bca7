"""Keeps matrix products on one thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from numaserve.kernels import Team

# Tests run in as many processes as there are cores: libraries that start a thread for each core only get in each
# other's way. Read when numpy and torch are imported, which test modules do after this file.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def team() -> Team:
    """A thread on a core; not the whole process, as a team would have it."""
    from numaserve.kernels import Team

    allowed = os.sched_getaffinity(0)
    team = Team([min(allowed)])
    # The team pins its caller; torch's threads, started from here, would all share that core.
    os.sched_setaffinity(0, allowed)
    return team
