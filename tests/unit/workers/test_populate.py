"""Memory is touched ahead of its use, all of it and nothing else."""

from __future__ import annotations

import ctypes
import mmap
import resource
from itertools import count

import pytest
from numaserve.workers.populate import Population

HUGE = 2 << 20
NBYTES = 3 * HUGE


def faults_of_writing(memory: mmap.mmap, begin: int, end: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for at in range(begin, end, mmap.PAGESIZE):
        memory[at] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_populated_memory_is_not_faulted_in_when_written() -> None:
    with mmap.mmap(-1, NBYTES) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        part = NBYTES // 2
        population = Population(address_of(memory), part)
        pieces = next(n for n in count(1) if not population.advance())
        assert pieces >= part // HUGE
        assert not population.advance()
        pages = part // mmap.PAGESIZE
        assert faults_of_writing(memory, 0, part) < pages / 10
        assert faults_of_writing(memory, part, NBYTES) >= pages


def test_nothing_before_the_first_byte_is_touched_and_no_memory_is_no_work() -> None:
    with mmap.mmap(-1, 4 * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        assert not Population(address_of(memory) + 1, 2 * mmap.PAGESIZE - 1).advance()
        assert faults_of_writing(memory, 0, mmap.PAGESIZE) == 1
        assert not Population(address_of(memory), 0).advance()


def test_a_kernel_that_cannot_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), mmap.mmap(-1, NBYTES) as memory:
        address = address_of(memory)
    population = Population(address, NBYTES)  # no longer there
    with caplog.at_level("INFO"):
        assert not population.advance()
        assert not population.advance()
    assert len(caplog.records) == 1
