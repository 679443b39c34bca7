"""Collectives of real processes, from Python and from native code, against serial sums."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numaserve.shm_comm import Ring
from numaserve.shm_comm.segment import create_segment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native stress program; the ring is header-only, so that one call of the compiler builds it."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("ring") / "ring_stress"
    flags = ["-std=c++20", "-O2", "-march=x86-64-v3", "-ffp-contract=off", "-pthread", f"-I{ROOT}"]
    subprocess.run([compiler, *flags, str(ROOT / "tests/shm_comm/ring_stress.cc"), "-o", str(program)], check=True)
    return program


def run_stress(program: Path, *words: str | int) -> str:
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_random_collectives_of_processes_equal_a_serial_sum_to_the_last_bit(start_group, world, count):
    group = start_group("verify", world, deadline=60.0, count=count, seed=world)
    assert group.outputs() == ["0 wrong"] * world
    assert [rank.returncode for rank in group.ranks] == [0] * world


@pytest.mark.parametrize(
    ("world", "lanes", "count"),
    [
        *((2, 1, 1000), (2, 3, 400), (3, 2, 400), (8, 1, 400)),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in ((2, 1, 8000), (2, 3, 2000), (3, 2, 2000))),
        pytest.param(8, 1, 3000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("seed", [pytest.param(11, id="spinning"), pytest.param(12, id="sleeping")])
def test_native_collectives_of_many_lanes_equal_a_serial_sum_to_the_last_bit(stress, world, lanes, count, seed):
    assert " 0 wrong" in run_stress(stress, "processes", world, lanes, count, seed)


@pytest.mark.parametrize("seed", [pytest.param(11, id="spinning"), pytest.param(12, id="sleeping")])
def test_ranks_may_be_threads_of_one_process(stress, seed):
    assert " 0 wrong" in run_stress(stress, "threads", 3, 2, 800, seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_collectives_of_random_sizes_equal_a_serial_sum_to_the_last_bit(stress):
    for world in range(2, 9):
        assert " 0 wrong" in run_stress(stress, "processes", world, 1, 1_000_000 // 7 + 1, 1000 + world)


def test_a_message_longer_than_a_slot_goes_in_pieces():
    with create_segment(1, lanes=1, slot_bytes=4096) as segment:
        ring = Ring(segment.fd, 0, segment.nonce)
        array = np.arange(5000, dtype=np.float32)
        ring.all_reduce(array)
        assert ring.position == 5
        assert (array == np.arange(5000)).all()


def test_an_empty_message_takes_no_collective():
    with create_segment(1, lanes=1, slot_bytes=4096) as segment:
        ring = Ring(segment.fd, 0, segment.nonce)
        ring.all_reduce(np.empty(0, np.float32))
        assert ring.position == 0


@pytest.mark.parametrize(
    "array", [np.zeros(4), np.zeros((4, 4), np.float32).T[1:], np.frombuffer(bytes(16), np.float32)]
)
def test_an_array_that_cannot_be_summed_in_place_is_refused(array):
    with create_segment(1, lanes=1, slot_bytes=4096) as segment:
        ring = Ring(segment.fd, 0, segment.nonce)
        with pytest.raises(TypeError):
            ring.all_reduce(array)
        assert ring.position == 0


def test_a_gather_into_an_array_of_the_wrong_size_is_refused():
    with create_segment(1, lanes=1, slot_bytes=4096) as segment:
        ring = Ring(segment.fd, 0, segment.nonce)
        with pytest.raises(ValueError, match="world_size times"):
            ring.all_gather(np.zeros(4, np.uint8), np.zeros(5, np.uint8))
