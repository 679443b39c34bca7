"""Rows between the ranks of stages on two hosts."""

import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from msgspec import structs
from numaserve.workers.interface.host_links import PART_BYTES, Address, new_keys
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.process.links import RowsLost, StageLinks

from tests.support.plan_limits import capacity

COLUMNS = 1000
MANY = 2 * PART_BYTES // (4 * COLUMNS) + 7  # rows, of three parts


class Waited(Exception):
    """Raised after some looks at the front end: no rows have come."""


def looks(count: int) -> Callable[[], None]:
    left = iter(range(count))

    def check() -> None:
        if next(left, None) is None:
            raise Waited

    return check


@pytest.fixture
def launches() -> tuple[Launch, Launch]:
    """The launches of two ranks, of which the second one listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    rows, keys = str(Address("127.0.0.1", listener.getsockname()[1])), new_keys()
    any_rank = Launch(0, 1, "", [[0]], [0], [1], capacity(), -1, 0, 1.0)
    return (
        structs.replace(any_rank, rows_to=rows, rows_public=keys.public),
        structs.replace(any_rank, rows_from=rows, rows_secret=keys.secret, rows_fd=listener.detach()),
    )


@pytest.fixture
def links(launches: tuple[Launch, Launch]) -> Iterator[tuple[StageLinks, StageLinks]]:
    first, second = (StageLinks(each, looks(100)) for each in launches)
    for each in (first, second):
        each.open(lambda: None)
    yield first, second
    first.close()
    second.close()


def test_rows_of_any_size_arrive_as_they_were_sent(links: tuple[StageLinks, StageLinks]) -> None:
    first, second = links
    for step, count in enumerate((1, 0, MANY)):
        rows = np.random.default_rng(step).standard_normal((count, COLUMNS)).astype(np.float32)
        out = np.zeros_like(rows)
        first.send(step, rows)
        second.receive(step, out)
        assert (out == rows).all()


def test_a_refused_plan_is_refused_and_the_next_one_arrives(links: tuple[StageLinks, StageLinks]) -> None:
    first, second = links
    rows = np.ones((2, COLUMNS), np.float32)
    first.refuse(1)
    first.send(2, rows)
    first.send(3, rows)
    out = np.zeros_like(rows)
    with pytest.raises(ValueError, match="has refused the step"):
        second.receive(1, out)
    with pytest.raises(ValueError, match="has sent 2 rows for 1 tokens"):
        second.receive(2, out[:1])
    second.receive(3, out)
    assert (out == rows).all()


def test_rows_that_are_lost_end_the_launch(links: tuple[StageLinks, StageLinks]) -> None:
    first, second = links
    rows = np.ones((2, COLUMNS), np.float32)
    first.send(2, rows)
    with pytest.raises(RowsLost, match="rows of step 2 for step 1"):
        second.receive(1, np.zeros_like(rows))


def test_a_rank_of_another_launch_is_not_let_in(launches: tuple[Launch, Launch]) -> None:
    before = structs.replace(launches[0], rows_public=new_keys().public)
    first, second = StageLinks(before, looks(0)), StageLinks(launches[1], looks(2))
    with pytest.raises(Waited):
        first.open(lambda: None)
    rows = np.ones((2, COLUMNS), np.float32)
    first.send(1, rows)
    with pytest.raises(Waited):
        second.receive(1, np.zeros_like(rows))
    first.close()
    second.close()
