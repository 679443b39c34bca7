"""A team on one core."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from numaserve.kernels import Team


@pytest.fixture(scope="module")
def team() -> Team:
    """A thread on a core; not the whole process, as a team would have it."""
    from numaserve.kernels import Team

    allowed = os.sched_getaffinity(0)
    team = Team([min(allowed)])
    # The team pins its caller; torch's threads, started from here, would all share that core.
    os.sched_setaffinity(0, allowed)
    return team
