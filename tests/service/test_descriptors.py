import resource
from collections.abc import Iterator

import pytest
from numaserve.server.connection.descriptors import check_descriptors, max_connections
from numaserve.workers.interface.errors import OperatorError


class Limit:
    """Stands in for the kernel's: a hard limit that was lowered cannot be raised again in the same process."""

    def __init__(self, soft: int, hard: int) -> None:
        self.pair = (soft, hard)

    def get(self, _kind: int) -> tuple[int, int]:
        return self.pair

    def set(self, _kind: int, pair: tuple[int, int]) -> None:
        self.pair = pair


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Limit]:
    limit = Limit(1024, 1 << 20)
    monkeypatch.setattr(resource, "getrlimit", limit.get)
    monkeypatch.setattr(resource, "setrlimit", limit.set)
    yield limit


def test_the_limit_is_raised_as_far_as_it_is_of_use(limit: Limit) -> None:
    assert max_connections() == (1 << 16) - 128
    assert limit.pair == (1 << 16, 1 << 20)


@pytest.mark.parametrize("hard", [64, 128, 143])
def test_too_few_descriptors_to_serve_anybody_are_refused_with_the_remedy(limit: Limit, hard: int) -> None:
    limit.pair = (hard, hard)
    with pytest.raises(
        OperatorError, match=rf"open files is {hard} and the server needs 144 or more: raise .* LimitNOFILE="
    ):
        check_descriptors(1)


def test_a_connection_may_take_several_descriptors_beside_what_is_kept(limit: Limit) -> None:
    limit.pair = (1024, 1024)
    assert max_connections(each=3, others=40) == (1024 - 128 - 40) // 3
    limit.pair = (215, 215)
    with pytest.raises(OperatorError, match="open files is 215 and the server needs 216 or more"):
        max_connections(each=3, others=40)


def test_fewer_connections_than_requests_may_run_are_warned_of(limit: Limit, caplog: pytest.LogCaptureFixture) -> None:
    limit.pair = (160, 160)
    check_descriptors(32)
    assert not caplog.records
    check_descriptors(33)
    assert "allows 32 connections, fewer than the maximum of 33 requests" in caplog.text
