"""Groups of rank processes around one segment, ended whatever a test does."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from numaserve.shm_comm.segment import Segment, create_segment

from tests.support.forked import Forked, prepare

WORKER = Path(__file__).with_name("ring_worker.py")


class RankGroup:
    """The processes of one group, each running ring_worker.py in the same mode."""

    def __init__(self, mode: str, world: int, *, deadline: float, count: int = 0, seed: int = 0) -> None:
        self.segment: Segment = create_segment(world, lanes=2, slot_bytes=16384)
        self.ranks = [
            Forked(
                [sys.executable, str(WORKER), mode]
                + [str(word) for word in (self.segment.fd, rank, self.segment.nonce, world, deadline, count, seed)],
                pass_fds=[self.segment.fd],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]

    def wait_until_running(self) -> None:
        for rank in self.ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "running\n"

    def outputs(self, timeout: float = 120) -> list[str]:
        return [rank.communicate(timeout=timeout)[0].strip() for rank in self.ranks]

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()
        self.segment.close()


@pytest.fixture(autouse=True, scope="session")
def _forked_ranks() -> None:
    prepare([WORKER.stem], WORKER.parent)


@pytest.fixture
def start_group() -> Iterator[Callable[..., RankGroup]]:
    groups: list[RankGroup] = []

    def start(mode: str, world: int, **options: float) -> RankGroup:
        groups.append(RankGroup(mode, world, **options))
        return groups[-1]

    yield start
    for group in groups:
        group.end()
