from concurrent.futures import ThreadPoolExecutor
from threading import BrokenBarrierError

import pytest
from numaserve.workers.program.reference.ranks import Group, Member


def test_ranks_that_wait_for_one_that_failed_fail_with_its_error() -> None:
    group = Group(3)

    def fail() -> None:
        raise KeyError("the first error")

    def wait(rank: int) -> list[int]:
        return Member(group, rank).run(lambda: group.gather(rank, rank))

    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(wait, rank) for rank in (0, 1)]
        failed = threads.submit(Member(group, 2).run, fail)
        for each in (*waiting, failed):
            with pytest.raises(KeyError, match="the first error"):
                each.result()


def test_a_rank_that_never_comes_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.workers.program.reference.ranks._PATIENCE_S", 0.01)
    with pytest.raises(BrokenBarrierError):
        Group(2).gather(0, None)
