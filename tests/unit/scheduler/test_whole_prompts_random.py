"""Random operations on a scheduler of whole prompts."""

import random

import pytest
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.sequence import SequenceState
from numaserve.workers.interface.protocol import StepPlan
from whole_prompt_service import PAGE, WholePrompts, config

SEEDS = 150
OPERATIONS = 120


def service(draw: random.Random) -> WholePrompts:
    context = draw.randint(4, 60)
    fewest = -(-context // PAGE)
    limits = config(
        context_length=context,
        num_pages=draw.randint(fewest, fewest + 8),
        max_slots=draw.randint(1, 8),
        max_step_tokens=draw.choice([1, 4, 8, 16, 32, 64]),
        max_logit_rows=draw.choice([1, 4, 64]),
    )
    return WholePrompts(limits, ahead=draw.random() < 0.7)


def check_first(subject: WholePrompts, waiting: list[str], planned: list[str]) -> None:
    """Check that a plan has the first prompts that waited, and that the next one found no place."""
    assert planned == waiting[: len(planned)]
    lengths = {name: subject.lengths[name] for name in waiting}
    used = sum(lengths[name] for name in planned)
    after = waiting[len(planned) :]
    if not planned or not after:
        return
    limits, pages = subject.config, sum(-(-lengths[name] // PAGE) for name in planned)
    fits = used + lengths[after[0]] <= limits.shared_step_tokens
    has_pages = pages + -(-lengths[after[0]] // PAGE) <= limits.capacity.num_pages
    assert not (fits and has_pages and len(subject.scheduler.running) < limits.max_running), "the step was cut short"


@pytest.mark.parametrize("block", range(0, SEEDS, 25))
def test_prompts_of_one_client_are_planned_once_whole_and_by_priority_and_arrival(block: int) -> None:
    for seed in range(block, block + 25):
        draw = random.Random(seed)
        subject = service(draw)
        for index in range(draw.randint(1, 50)):  # fewer than a priority may overtake
            subject.add_prompt(
                str(index), draw.randint(1, subject.config.capacity.context_length), priority=draw.choice([0, 0, -1, 1])
            )
            for _ in range(draw.choice([0, 0, 1, 2])):
                waiting = [seq for seq in subject.live() if seq.state is SequenceState.WAITING]
                ordered = [
                    seq.request_id for seq in sorted(waiting, key=lambda seq: (seq.request.priority, seq.arrival))
                ]
                check_first(subject, ordered, subject.plan())
                if subject.sent and draw.random() < 0.6:
                    subject.receive()
        subject.drain()
        assert sorted(subject.planned) == sorted(subject.lengths), f"seed {seed}: not each prompt in just one plan"
        assert sorted(subject.embedded) == sorted(subject.lengths)
        assert subject.scheduler.stats().pages_free == subject.config.capacity.num_pages


@pytest.mark.parametrize("block", range(0, SEEDS, 25))
def test_whatever_happens_each_prompt_ends_once_and_all_pages_are_free(block: int) -> None:
    for seed in range(block, block + 25):
        draw = random.Random(seed)
        subject = service(draw)
        clients = [Client(name, weight) for name, weight in (("a", 1.0), ("b", 3.0), ("", 0.5))]
        aborted: set[str] = set()
        lost = False  # plans, with or without their sequences
        for index in range(OPERATIONS):
            match draw.choices(["add", "schedule", "receive", "abort", "fail", "die"], [8, 8, 6, 1, 0.3, 0.3])[0]:
                case "add":
                    length = draw.randint(1, subject.config.capacity.context_length)
                    options = {"client": draw.choice(clients), "priority": draw.choice([0, 0, -3, 2, 100])}
                    subject.add_prompt(str(index), length, nan=draw.random() < 0.05, **options)
                case "schedule":
                    subject.plan()
                case "receive" if subject.sent:
                    subject.receive()
                case "abort" if subject.live():
                    seq = draw.choice(subject.live())
                    subject.scheduler.finish(seq.request_id)
                    aborted.add(seq.request_id)
                case "fail" if subject.sent and isinstance(subject.sent[0], StepPlan):
                    subject.fail_step()
                    lost = True
                case "die":
                    subject.restart_workers()
                    lost = True
        subject.drain()
        assert not subject.live()
        assert all(times == 1 for times in subject.answered.values()), f"seed {seed}: a prompt was answered twice"
        assert not aborted & set(subject.embedded)
        if not lost:
            ended = aborted | set(subject.answered)
            assert ended == set(subject.lengths), f"seed {seed}: a prompt was lost"
            assert len(subject.planned) == len(set(subject.planned)), f"seed {seed}: a prompt was planned twice"
        assert subject.scheduler.stats().retractions == 0
        assert subject.scheduler.stats().pages_free == subject.config.capacity.num_pages
