"""What the worker's loop does between messages."""

from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import pytest
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import (
    CancelMove,
    Ceilings,
    FromWorker,
    Launch,
    ProfileRequest,
    RankProfile,
    ReadRecords,
    RecordsMoved,
    SeqPlan,
    Shutdown,
    StepPlan,
    StepResult,
    ToDisk,
    ToWorker,
)
from numaserve.workers.process import loop
from numaserve.workers.process.loop import Mailbox, serve
from numaserve.workers.process.model import StepAnswer

LAUNCH = Launch(
    rank=0,
    world_size=1,
    model="",
    cpus=[[0]],
    nodes=[0],
    weights=[1],
    capacity=Capacity.of_program(32, 1, 1, 2, 8),
    ring_fd=-1,
    ring_nonce=0,
    step_deadline_s=1.0,
)


SLICES = 3
CEILINGS = Ceilings("simulated", 1, None, {})


class FullMailbox:
    """A mailbox in which a message always waits: nothing is done while there is none."""

    def __init__(self, messages: list[ToWorker]) -> None:
        self._messages: Iterator[ToWorker] = iter(messages)
        self.sent: list[FromWorker] = []

    def receive(self, meanwhile: Callable[[], bool] = lambda: False, *, pause_ms: int = 0) -> ToWorker:
        return next(self._messages)

    def send(self, message: FromWorker) -> None:
        self.sent.append(message)


class Model:
    """A model of which every step is done at once, and its memory, which writes down what it is told."""

    is_behind = False

    def __init__(self) -> None:
        self.events: list[object] = []
        self._answers: list[FromWorker] = []

    @property
    def disk(self) -> "Model":
        return self

    def begin(self, message: ToDisk) -> None:
        self.events.append(message)
        if isinstance(message, CancelMove):
            self._answers.append(RecordsMoved(0, message.request_id, 0, "cancelled"))

    def answers(self) -> list[FromWorker]:
        answers, self._answers = self._answers, []
        return answers

    def kv_populations(self) -> list["Model"]:
        return [self]

    def advance(self) -> bool:
        return False

    def follow(self, plan: StepPlan) -> None:
        self.events += [max(seq.pages) for seq in plan.seqs if seq.pages]

    def keep_up(self) -> None:
        self.events.append("keep up")

    def run(self, plan: StepPlan) -> StepAnswer:
        self.events.append("step")
        return StepAnswer([], 0, 0, 0)

    def measure_ceilings(self) -> Generator[None, None, Ceilings]:
        for _ in range(SLICES):
            self.events.append("slice")
            yield
        return CEILINGS

    def profile(self, request: ProfileRequest, ceilings: Ceilings | None = None) -> RankProfile:
        self.events.append("profile")
        return RankProfile(request.request_id, 0, 0, 0, 0, [], ceilings)

    def cache_weights(self) -> None: ...

    def close(self) -> None: ...


def test_memory_keeps_up_with_the_pages_of_steps_that_leave_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    monkeypatch.setattr(loop, "_load", lambda *_: model)
    plans = [StepPlan(step_id, [SeqPlan(0, 0, [1], pages=pages)]) for step_id, pages in enumerate([[2, 0], [], [3]])]
    mailbox = FullMailbox([LAUNCH, *plans, Shutdown()])
    assert serve(cast(Mailbox, cast(Any, mailbox)), 0) == 0
    assert model.events == [2, "step", "keep up", "step", "keep up", 3, "step", "keep up"]
    assert [message.step_id for message in mailbox.sent if isinstance(message, StepResult)] == [0, 1, 2]


class EmptyMailbox(FullMailbox):
    """One in which no message comes while there is something to do."""

    def receive(self, meanwhile: Callable[[], bool] = lambda: False, *, pause_ms: int = 0) -> ToWorker:
        while meanwhile():
            assert pause_ms == 0
        return super().receive()


def test_ceilings_are_measured_in_slices_between_steps_that_leave_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    monkeypatch.setattr(loop, "_load", lambda *_: model)
    steps = [StepPlan(step_id, [SeqPlan(0, 0, [1])]) for step_id in range(SLICES + 2)]
    mailbox = FullMailbox([LAUNCH, ProfileRequest(7, ceilings=True), ProfileRequest(8), *steps, Shutdown()])
    assert serve(cast(Mailbox, cast(Any, mailbox)), 0) == 0
    events = [event for event in model.events if event != "keep up"]
    assert events == ["profile", *("step", "slice") * SLICES, "step", "profile", "step"]
    told = [(each.request_id, each.ceilings) for each in mailbox.sent if isinstance(each, RankProfile)]
    assert told == [(8, None), (7, CEILINGS)]


def test_ceilings_are_measured_at_once_while_nothing_else_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    monkeypatch.setattr(loop, "_load", lambda *_: model)
    # The launch is received before there is a loop.
    mailbox = EmptyMailbox([LAUNCH, ProfileRequest(7, ceilings=True), StepPlan(0, [SeqPlan(0, 0, [1])]), Shutdown()])
    assert serve(cast(Mailbox, cast(Any, mailbox)), 0) == 0
    assert model.events == [*["slice"] * SLICES, "profile", "step", "keep up"]


def test_records_are_moved_after_the_steps_that_were_planned_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    monkeypatch.setattr(loop, "_load", lambda *_: model)
    read, cancel = ReadRecords(7, []), CancelMove(7)
    first, second = (StepPlan(step_id, [SeqPlan(0, 0, [1])]) for step_id in range(2))
    mailbox = FullMailbox([LAUNCH, first, read, second, cancel, Shutdown()])
    assert serve(cast(Mailbox, cast(Any, mailbox)), 0) == 0
    assert model.events == ["step", "keep up", read, "step", "keep up", cancel]
    assert mailbox.sent[-1] == RecordsMoved(0, 7, 0, "cancelled")  # at once, and not after the next plan
