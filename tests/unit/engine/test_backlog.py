"""The work that waits, by its size and not by its number."""

from typing import Any

import pytest
from numaserve.server.engine.admission.backlog import Backlog
from numaserve.server.scheduler.images import PlacedTile, Tile
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.scheduler.step import InFlight
from numaserve.workers.interface.protocol import OperationTerms, SamplingParams, StepResult

from tests.support import sequences
from tests.support.plan_limits import plan_limits

STEP_S, TOKEN_S = 0.01, 0.001  # of a step, and of each token in it


def settled(**limits: Any) -> Scheduler:
    """A scheduler that has learnt what steps take."""
    scheduler = Scheduler(plan_limits(num_pages=1000, context_length=10_000, max_slots=10, **limits))
    scheduler.costs.describe([[OperationTerms("linear", row_flops=1e8)]])
    for tokens in (1, 512, 8, 100) * 30:
        work = scheduler.costs.begin()
        work.add(0, tokens, 1)
        scheduler.costs.observe(work.terms(), STEP_S + TOKEN_S * tokens)
    return scheduler


def sequence(name: str, prompt: int, output: int) -> Sequence:
    return sequences.sequence(name, [1] * prompt, SamplingParams(), output)


def answered(name: str, prompt: int, most: int, output: int) -> Sequence:
    """A sequence that was computed and had `output` tokens of the `most` that it might have."""
    ended = sequence(name, prompt, most)
    ended.tokens += [1] * output
    ended.cached_tokens = 0
    return ended


def test_a_prompt_takes_its_steps_and_an_answer_its_part_of_the_steps_of_a_batch() -> None:
    backlog = Backlog(settled())
    backlog.enter(sequence("a", 1024, 0))
    prompt = 1024 * TOKEN_S + 2 * STEP_S
    assert backlog.seconds == pytest.approx(prompt, rel=0.05)
    backlog.enter(sequence("b", 1, 50))
    assert backlog.seconds == pytest.approx(prompt + STEP_S + TOKEN_S + 50 * (STEP_S / 10 + TOKEN_S), rel=0.05)
    assert backlog.tokens == 1024 + 51


def test_a_whole_prompt_takes_one_step() -> None:
    chunked, whole = (
        Backlog(settled(max_step_tokens=16)),
        Backlog(settled(max_step_tokens=16, whole_prompts=True, enable_prefix_cache=False)),
    )
    for backlog in (chunked, whole):
        backlog.enter(sequence("a", 160, 0))
    assert chunked.seconds == pytest.approx(160 * TOKEN_S + 10 * STEP_S, rel=0.05)
    assert whole.seconds == pytest.approx(160 * TOKEN_S + STEP_S, rel=0.05)


def test_what_has_left_the_queue_waits_no_more_and_is_counted_once() -> None:
    backlog = Backlog(settled())
    first, second = sequence("a", 100, 10), sequence("b", 100, 10)
    backlog.enter(first)
    alone = backlog.seconds
    backlog.enter(second)
    backlog.leave(first)
    backlog.leave(first)
    assert (backlog.tokens, backlog.seconds) == (110, pytest.approx(alone))
    backlog.ended(second, 1.0)
    backlog.ended(first, 2.0)
    assert (backlog.tokens, backlog.seconds) == (0, 0.0)


def test_an_answer_is_expected_to_be_as_long_as_answers_were_and_no_longer_than_it_may_be() -> None:
    backlog = Backlog(settled())
    for index in range(200):
        ended = answered(f"{index}", 10, 5000, 20)
        backlog.enter(ended)
        backlog.ended(ended, float(index))
    backlog.enter(sequence("a", 10, 5000))
    assert backlog.tokens == 10 + 20
    backlog.enter(sequence("b", 10, 5))
    assert backlog.tokens == 45


def test_a_client_without_room_is_told_when_half_of_the_tokens_will_be_done() -> None:
    backlog = Backlog(settled())
    for index in range(10):
        backlog.ended(answered(f"{index}", 90, 10, 10), float(index))
    for index in range(20):
        backlog.enter(sequence(f"waiting {index}", 90, 10))
    assert backlog.retry_after(10.0) == 10


def test_what_cannot_be_told_yet_refuses_nobody() -> None:
    backlog = Backlog(Scheduler(plan_limits(num_pages=10, context_length=10_000)))
    backlog.enter(sequence("a", 5000, 100))
    assert backlog.seconds == 0.0


def test_a_prompt_with_images_takes_the_runs_of_its_tiles() -> None:
    run_s = 0.5
    scheduler = settled(feature_tiles=4, rows_per_tile=2)
    scheduler.step_costs.describe(
        [[OperationTerms("linear", row_flops=1e8)]], [], [[OperationTerms("a", row_flops=1e8)]]
    )
    for step in range(20):
        record = InFlight(step, run_share=1.0, terms=scheduler.costs.begin().terms(0, 8))
        seconds = STEP_S + 8 * TOKEN_S + run_s
        scheduler.step_costs.observe(
            record, StepResult(step, 0, [], 0, 0, round(seconds * 1e9), tower_ns=round(run_s * 1e9))
        )
    text, image = Backlog(scheduler), Backlog(scheduler)
    text.enter(sequence("a", 16, 0))
    tiles = tuple(PlacedTile(start, Tile(0, b"", 1, 2)) for start in (1, 5, 9))
    image.enter(sequences.sequence("a", [1] * 16, SamplingParams(), 0, images=tiles))
    assert image.seconds - text.seconds == pytest.approx(3 * run_s, rel=0.05)
