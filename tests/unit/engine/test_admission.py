"""What may wait, and the reserve for those who have nothing here."""

import pytest
from numaserve.server.engine.admission.admission import Admission
from numaserve.server.engine.admission.backlog import Backlog
from numaserve.server.engine.types import QueueFull
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.plan_limits import plan_limits
from tests.support.sequences import sequence

RUNNING, QUEUED, RESERVE = 2, 16, 2
FLOOD = Client("flood")


class Doorway:
    """Requests that came in."""

    def __init__(self, max_queued_s: float = 600.0) -> None:
        self.scheduler = Scheduler(plan_limits(num_pages=64, context_length=64, max_slots=RUNNING))
        self.backlog = Backlog(self.scheduler)
        self.room = Admission(self.scheduler, self.backlog, max_queued_requests=QUEUED, max_queued_s=max_queued_s)
        self.inside = 0

    def come(self, client: Client, sequences: int = 1) -> None:
        requests = [Request("", [1], SamplingParams(), 8, client=client)] * sequences
        self.room.check(requests, self.inside, 0.0)
        for request in requests:
            self.scheduler.add(sequence(str(self.inside), [1], request.sampling, 8, client=client))
            self.inside += 1

    def is_full_for(self, client: Client, sequences: int = 1) -> bool:
        try:
            self.come(client, sequences)
        except QueueFull:
            return True
        return False


def test_a_flood_fills_the_queue_and_leaves_a_reserve_to_newcomers() -> None:
    door = Doorway()
    for _ in range(RUNNING + QUEUED):
        door.come(FLOOD)
    assert door.is_full_for(FLOOD)
    assert door.is_full_for(Client("many at once"), RESERVE + 1)
    assert not door.is_full_for(Client("one"))
    assert door.is_full_for(Client("one"))  # it is new no more
    assert not door.is_full_for(Client("two"))
    assert door.is_full_for(Client("three"))  # the reserve has an end


def test_a_queue_that_takes_nobody_takes_no_flood_of_newcomers() -> None:
    door = Doorway()
    door.come(FLOOD, RUNNING + QUEUED)
    assert [door.is_full_for(Client(str(index))) for index in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize(("seconds", "full"), [(99.0, (False, False)), (101.0, (True, False)), (120.0, (True, True))])
def test_work_that_takes_too_long_is_a_full_queue_too(seconds: float, full: tuple[bool, bool]) -> None:
    door = Doorway(max_queued_s=100.0)
    door.come(FLOOD)
    door.backlog.seconds = seconds
    assert (door.is_full_for(FLOOD), door.is_full_for(Client("newcomer"))) == full
