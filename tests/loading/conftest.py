"""A team on one core, and a disk tier."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from disk_rank import Rank
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


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    """A disk tier that is ready, of a rank with files in `tmp_path`."""
    from disk_rank import Rank

    rank = Rank(tmp_path)
    assert rank.ready.problem == ""
    yield rank
    rank.close()
