"""Time of work that threads share a node's memory for, by cases that can be computed by hand."""

import pytest
from numaserve.workers.planning.simulation.counting import Work
from numaserve.workers.planning.simulation.fluid import Rates, handed_out, read_seconds, thread_seconds

RATES = Rates(node_read=100.0, core_read=40.0, core_moved=10.0, core_flops=5.0)


def read(memory: int) -> Work:
    return Work(memory, 0, 0, 0)


def test_one_thread_reads_at_the_rate_of_a_core() -> None:
    assert read_seconds([80], RATES) == [2.0]


def test_threads_that_would_need_more_share_the_rate_of_the_node() -> None:
    assert read_seconds([50, 50, 50, 50], RATES) == [2.0] * 4


def test_a_thread_leaves_its_part_to_the_others() -> None:
    """Four threads read 25 a second each. From 2 s on, two read 40 a second, which is as much as a core can."""
    assert read_seconds([130, 50, 50, 90], RATES) == pytest.approx([4.0, 2.0, 2.0, 3.0])


def test_threads_without_bytes_end_at_once() -> None:
    assert read_seconds([0, 40], RATES) == [0.0, 1.0]


def test_a_thread_computes_while_it_reads() -> None:
    works = [Work(40, 0, 0, 30), Work(80, 10, 0, 0), Work(0, 20, 0, 5)]
    assert thread_seconds(works, RATES) == pytest.approx([6.0, 2.0, 3.0])


def test_items_go_to_the_thread_that_is_free() -> None:
    """Two threads that took items in turn would have the work of 13 and 6."""
    items = [Work(0, 0, 0, flops) for flops in (9, 2, 3, 4, 1)]
    assert [work.flops for work in handed_out(items, 2, RATES)] == [10, 9]


def test_fewer_items_than_threads_leave_threads_idle() -> None:
    assert handed_out([read(7)], 3, RATES) == [read(7), read(0), read(0)]


def test_nothing_is_lost_when_work_is_handed_out() -> None:
    items = [Work(3 * i % 17, i, 2 * i, 5 * i % 11) for i in range(100)]
    loads = handed_out(items, 7, RATES)
    assert [sum(each) for each in zip(*loads, strict=True)] == [sum(each) for each in zip(*items, strict=True)]
