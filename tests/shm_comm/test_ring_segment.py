"""Which segments can be made, and which a rank refuses to join."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from numaserve.shm_comm import Ring, RingError
from numaserve.shm_comm.segment import create_segment

# Byte offsets of the header's fields, written here a second time on purpose: the layout is a contract.
MAGIC, VERSION, WORLD, LANES, SLOT_BYTES = 0, 8, 12, 16, 24


@pytest.fixture
def segment():
    with create_segment(2, lanes=2, slot_bytes=8192) as made:
        yield made


def test_a_rank_sees_the_geometry_of_its_segment(segment):
    ring = Ring(segment.fd, 1, segment.nonce, 2)
    assert (ring.rank, ring.world_size, ring.lanes, ring.slot_bytes) == (1, 2, 2, 8192)
    assert ring.nbytes == segment.nbytes == os.fstat(segment.fd).st_size


def test_parts_are_whole_pages_that_cover_the_segment_behind_its_first_page(segment):
    ring = Ring(segment.fd, 0, segment.nonce)
    (first, length), (second, last_length) = ring.part_range(0), ring.part_range(1)
    assert first == 4096
    assert second == first + length
    assert second + last_length == segment.nbytes
    assert first % 4096 == length % 4096 == ring.base_address % 4096 == 0


def test_a_rank_or_a_lane_that_the_segment_does_not_have_is_refused(segment):
    ring = Ring(segment.fd, 0, segment.nonce)
    for number in (-1, 2):
        with pytest.raises(IndexError, match="the rank is out of range"):
            ring.part_range(number)
        with pytest.raises(IndexError, match="the lane is out of range"):
            ring.wait_ns(number)


def test_making_a_segment_touches_no_page_of_any_rank(segment):
    assert os.fstat(segment.fd).st_blocks * 512 == 4096


def test_prefault_makes_the_pages_of_the_own_slots_only(segment):
    Ring(segment.fd, 0, segment.nonce).prefault()
    assert os.fstat(segment.fd).st_blocks * 512 == 4096 + 4096 + 3 * 8192


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages")
def test_a_rank_asks_for_huge_pages_of_large_slots():
    with create_segment(2, lanes=1, slot_bytes=1 << 20) as large:
        ring = Ring(large.fd, 0, large.nonce)
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        assert any(line.startswith(f"{ring.base_address:x}-") for line in lines)
        assert "hg" in next(line for line in lines if line.startswith("VmFlags:")).split()


def test_the_descriptor_is_not_inherited_unless_it_is_passed(segment):
    assert not os.get_inheritable(segment.fd)
    code = f"import os; print(os.fstat({segment.fd}).st_size)"
    passed = subprocess.run([sys.executable, "-c", code], pass_fds=[segment.fd], capture_output=True, check=True)
    assert int(passed.stdout) == segment.nbytes


@pytest.mark.parametrize("size", [0, 1 << 30])
def test_a_segment_cannot_change_its_size(segment, size):
    with pytest.raises(PermissionError):
        os.ftruncate(segment.fd, size)


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ((0, 1, 4096), "the number of ranks is 0; it must be 1 to 64"),
        ((65, 1, 4096), "the number of ranks is 65; it must be 1 to 64"),
        ((1, 0, 4096), "the number of lanes is 0; it must be 1 to 1024"),
        ((1, 1025, 4096), "the number of lanes is 1025; it must be 1 to 1024"),
        ((1, 1, 0), "the slot size is 0 bytes; it must be a multiple of 4096"),
        ((1, 1, 4097), "the slot size is 4097 bytes; it must be a multiple of 4096"),
        ((1, 1, 1 << 62), "slot size"),
    ],
)
def test_impossible_sizes_are_refused(sizes, complaint):
    with pytest.raises(RingError, match=complaint):
        create_segment(*sizes)


def test_a_worker_of_another_group_is_refused(segment):
    with pytest.raises(RingError, match="wrong nonce"):
        Ring(segment.fd, 0, segment.nonce ^ 1)


def test_a_worker_that_expects_another_world_is_refused(segment):
    with pytest.raises(RingError, match="for 2 ranks, but 3 were expected"):
        Ring(segment.fd, 0, segment.nonce, 3)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused(segment, rank):
    with pytest.raises(RingError, match="out of range for world size 2"):
        Ring(segment.fd, rank, segment.nonce)


def test_a_rank_can_be_taken_only_once(segment):
    ring = Ring(segment.fd, 0, segment.nonce)
    with pytest.raises(RingError, match=f"already taken by process {os.getpid()}"):
        Ring(segment.fd, ring.rank, segment.nonce)


@pytest.mark.parametrize(
    ("offset", "value", "complaint"),
    [
        (MAGIC, struct.pack("=Q", 1), "not a numaserve ring"),
        (VERSION, struct.pack("=I", 1), "segment version 1, but this build needs version 2"),
        (WORLD, struct.pack("=I", 3), "the segment has"),
        (WORLD, struct.pack("=I", 1 << 31), "the number of ranks is 2147483648"),
        (LANES, struct.pack("=I", 200), "the segment has"),
        (LANES, struct.pack("=I", 1 << 31), "lanes"),
        (SLOT_BYTES, struct.pack("=Q", 4096), "the segment has"),
        (SLOT_BYTES, struct.pack("=Q", 1 << 63), "slot size"),
    ],
)
def test_a_header_that_lies_is_refused(segment, offset, value, complaint):
    os.pwrite(segment.fd, value, offset)
    with pytest.raises(RingError, match=complaint):
        Ring(segment.fd, 0, segment.nonce)


def test_a_descriptor_that_could_shrink_under_the_worker_is_refused(tmp_path):
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(8192)
        with pytest.raises(RingError, match="not a sealed memfd"):
            Ring(file.fileno(), 0, 1)


def test_a_closed_descriptor_is_refused():
    with pytest.raises(RingError, match="descriptor -1"):
        Ring(-1, 0, 1)
