"""What happens to the others when a rank dies, with and without a supervisor that tells them."""

import random
import time
from pathlib import Path

import pytest


def leftovers() -> list[Path]:
    return [path for path in Path("/dev/shm").iterdir() if "numaserve" in path.name]


def kill_one_at_a_random_point(group, seed: int) -> int:
    """Kill a rank with SIGKILL after the group has run for a random time; return which."""
    chance = random.Random(seed)
    victim = chance.randrange(len(group.ranks))
    group.wait_until_running()
    time.sleep(chance.uniform(0, 0.1))
    group.ranks[victim].kill()
    group.ranks[victim].wait()
    return victim


def survivors(group, victim: int) -> list[str]:
    return [output for rank, output in enumerate(group.outputs()) if rank != victim]


# The seeds draw the victim: one group for each world and victim. Slow ones differ only in when the victim dies.
@pytest.mark.parametrize(
    "drawn",
    [((2, 0), (2, 1), (3, 3), (5, 5)), pytest.param(((2, 2), (3, 4)), marks=pytest.mark.slow)],
    ids=["each victim", "other times"],
)
def test_survivors_get_the_typed_error_within_the_deadline_when_a_rank_is_killed(start_group, drawn):
    groups, victims = [], []
    for world, seed in drawn:  # the survivors of one group wait while the next group starts
        groups.append(start_group("endless", world, deadline=1.5, seed=seed))
        victims.append(kill_one_at_a_random_point(groups[-1], seed))
    for group, victim in zip(groups, victims, strict=True):
        errors = survivors(group, victim)
        assert {error.split(":")[0] for error in errors} <= {"RingDeadline", "RingAborted"}
        assert any(error.startswith("RingDeadline") for error in errors)
        assert all(f"waited 1500 ms for rank {victim} (lane 0" in error for error in errors)
    assert leftovers() == []


@pytest.mark.parametrize(("world", "seed"), [(2, 10), (3, 11), (8, 12)])
def test_an_abort_by_the_supervisor_ends_the_survivors_long_before_the_deadline(start_group, world, seed):
    group = start_group("endless", world, deadline=3600.0, seed=seed)
    victim = kill_one_at_a_random_point(group, seed)
    assert group.segment.abort(f"rank {victim} died of signal 9")
    reason = f"RingAborted: the ring was aborted by the supervisor: rank {victim} died of signal 9"
    assert survivors(group, victim) == [reason] * (world - 1)
    assert leftovers() == []


def test_a_stopped_rank_is_named_by_the_deadline(start_group):
    group = start_group("endless", 2, deadline=0.5)
    group.wait_until_running()
    group.ranks[1].send_signal(19)
    error = group.ranks[0].communicate(timeout=60)[0]
    assert error.startswith("RingDeadline: the ring was aborted by rank 0: waited 500 ms for rank 1")


def test_the_first_reason_of_an_abort_is_kept(start_group):
    group = start_group("endless", 2, deadline=3600.0)
    group.wait_until_running()
    assert group.segment.abort("first")
    assert not group.segment.abort("second")
    assert all(output.endswith("supervisor: first") for output in group.outputs())
