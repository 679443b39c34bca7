"""A simulated service that several clients share."""

from collections import Counter
from functools import partial

from numaserve.server.scheduler.client import Client
from numaserve.workers.interface.protocol import StepPlan
from scheduler_simulation import Request, Service, small_service

from tests.support.scheduler_integrity import check_integrity

FLOOD, SMALL = Client("flood"), Client("small")

service = partial(small_service, num_pages=400, context_length=400, max_slots=8, max_step_tokens=32, max_logit_rows=32)


def step(server: Service) -> StepPlan | None:
    plan = server.schedule()
    if server.sent and (plan is None or not server.ahead or len(server.sent) == 2):
        server.receive()
    check_integrity(server.scheduler)
    return plan


def steps(server: Service, count: int) -> None:
    for _ in range(count):
        step(server)


def flood(server: Service, count: int, client: Client = FLOOD, *, prompt: int = 5, output: int = 60) -> list[Request]:
    salts = [f"{client.name} {index}" for index in range(count)]  # nothing is shared
    return [server.add([1] * prompt, output, salt=salt, client=client) for salt in salts]


def plans_until_begun(server: Service, request: Request) -> int:
    """Plans until the first that has some of the request's prompt."""
    for count in range(1, 1000):
        step(server)
        if any(seq.request_id == str(request.seed) for seq in server.scheduler.newly_admitted):
            return count
    raise AssertionError("it does not begin")


def running(server: Service) -> Counter[str]:
    return Counter(seq.request.client.name for seq in server.scheduler.running)
