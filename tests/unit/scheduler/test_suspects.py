"""The search for a sequence that kills the workers, among others that do not."""

import math
from collections.abc import Callable

import pytest
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.protocol import StepPlan
from scheduler_simulation import Request, Service

from tests.support.plan_limits import plan_limits
from tests.support.scheduler_integrity import check_integrity

CONFIG = plan_limits(num_pages=200, context_length=64, max_slots=16, max_step_tokens=48, page_size=4)


def prompt(index: int) -> list[int]:
    """Three tokens, other ones for every index below 27."""
    return [index % 3, index // 3 % 3, index // 9]


class Deadly:
    """A service whose workers die of any plan for which `dies` is true, as often as it comes."""

    def __init__(self, config: SchedulerConfig = CONFIG, ahead: bool = False) -> None:
        self.service = Service(config, ahead)
        self.deaths = 0

    def run(self, dies: Callable[[StepPlan], bool], max_deaths: int = 20) -> None:
        while not self.service.nobody_left:
            plan = self.service.schedule()
            check_integrity(self.service.scheduler)
            first = self.service.sent[0]
            assert isinstance(first, StepPlan)
            if dies(first):
                self.die()
                assert self.deaths <= max_deaths
            elif plan is None or not self.service.ahead or len(self.service.sent) == 2:
                self.service.receive()

    def die(self) -> None:
        self.deaths += 1
        self.service.restart_workers()
        check_integrity(self.service.scheduler)

    def slot_of(self, request: Request) -> int:
        return next((seq.slot for seq in self.service.scheduler.running if seq.request_id == str(request.seed)), -1)

    def computes(self, request: Request, position: int) -> Callable[[StepPlan], bool]:
        """Whether a plan has this position of the request."""

        def dies(plan: StepPlan) -> bool:
            slot = self.slot_of(request)
            return any(
                seq.slot == slot and seq.start <= position < seq.start + max(1, len(seq.tokens)) for seq in plan.seqs
            )

        return dies


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("position", [0, 5, 9])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 16])
def test_one_that_kills_is_found_by_halves_and_the_others_go_on(count: int, position: int, ahead: bool) -> None:
    for deadly in range(count):
        run = Deadly(ahead=ahead)
        requests = [run.service.add(prompt(index), 12) for index in range(count)]
        run.run(run.computes(requests[deadly], position))
        assert run.deaths <= math.ceil(math.log2(count)) + 2
        for index, request in enumerate(requests):
            if index == deadly:
                assert request.ends == ["convicted"]
                assert len(request.received) <= max(0, position - 2)
            else:
                assert request.ends == ["length"]
                assert request.received == request.tokens[3:15]


def test_two_that_kill_are_both_found() -> None:
    run = Deadly()
    requests = [run.service.add(prompt(index), 12) for index in range(8)]
    first, second = run.computes(requests[2], 6), run.computes(requests[5], 6)
    run.run(lambda plan: first(plan) or second(plan))
    assert run.deaths <= 2 * (3 + 2)
    assert [request.ends for request in requests] == [
        ["convicted"] if index in (2, 5) else ["length"] for index in range(8)
    ]


def test_deaths_between_which_steps_are_answered_convict_nobody() -> None:
    run = Deadly(ahead=True)
    requests = [run.service.add(prompt(index), 60) for index in range(16)]
    steps = iter(range(1, 10_000))
    run.run(lambda _plan: next(steps) % 31 == 0, max_deaths=1000)
    assert run.deaths > 1
    for request in requests:
        assert request.ends == ["length"] and request.received == request.tokens[3:63]


def test_a_death_without_plans_in_flight_is_nobodys() -> None:
    run = Deadly()
    request = run.service.add([0, 1], 4)
    for _ in range(5):
        finding = run.service.scheduler.workers_died()
        assert finding == (None, False)
    run.run(lambda _plan: False)
    assert request.ends == ["length"]


def test_those_held_back_run_once_the_trial_has_ended_by_itself() -> None:
    run = Deadly()
    requests = [run.service.add(prompt(index), 8) for index in range(2)]
    for _ in range(2):
        run.service.schedule()
        run.die()
    scheduler = run.service.scheduler
    assert [seq.request_id for seq in scheduler.held] == ["1"]
    assert scheduler.stats().waiting == 2
    run.service.end(requests[0], "abort")
    run.run(lambda _plan: False)
    assert [request.ends for request in requests] == [["abort"], ["length"]]


def test_one_that_is_held_back_may_end() -> None:
    run = Deadly()
    requests = [run.service.add(prompt(index), 8) for index in range(2)]
    for _ in range(2):
        run.service.schedule()
        run.die()
    run.service.end(requests[1], "abort")
    check_integrity(run.service.scheduler)
    assert run.service.scheduler.held == []
    run.service.schedule()
    run.die()  # of the only one on trial
    assert [request.ends for request in requests] == [["convicted"], ["abort"]]
    assert run.service.nobody_left


def test_one_that_was_held_back_does_not_wait_behind_those_that_came_later() -> None:
    run = Deadly(plan_limits(num_pages=200, context_length=64, max_slots=2, page_size=4))
    requests = [run.service.add(prompt(index), 8) for index in range(2)]
    for _ in range(2):
        run.service.schedule()
        run.die()
    late = [run.service.add(prompt(9 + index), 8) for index in range(4)]
    while not requests[1].ends:
        run.service.schedule()
        run.service.receive()
    assert [request.ends for request in late] == [["length"], ["length"], [], []]
    run.run(lambda _plan: False)
    assert all(request.ends == ["length"] for request in late)


def test_deaths_at_other_positions_of_a_request_do_not_convict_it() -> None:
    run = Deadly(plan_limits(num_pages=200, context_length=64, max_slots=16, max_step_tokens=8, page_size=4))
    request = run.service.add([index % 3 for index in range(40)], 4)
    for answered in (4, 1, 2, 3):
        for _ in range(answered):
            run.service.schedule()
            run.service.receive()
        run.service.schedule()
        run.die()
    run.run(lambda _plan: False)
    assert request.ends == ["length"]
