"""Whole prompts: models whose tokens see later ones compute each prompt in one step."""

from collections.abc import Callable
from itertools import count

import pytest
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.errors import SequenceTooLong
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.protocol import SamplingParams
from numaserve.workers.interface.windows import Window, WindowTable
from whole_prompt_service import WholePrompts, config

from tests.support.plan_limits import plan_limits
from tests.support.sequences import sequence


def test_prompts_are_packed_into_steps_in_order_of_arrival() -> None:
    subject = WholePrompts(config())
    for name, tokens in (("a", 7), ("b", 9), ("c", 1), ("d", 16), ("e", 8), ("f", 9), ("g", 2)):
        subject.add_prompt(name, tokens)
    steps = []
    while names := subject.plan():
        steps.append(names)
        subject.receive()
    # "g" would fit next to "e", but does not overtake "f".
    assert steps == [["a", "b"], ["c"], ["d"], ["e"], ["f", "g"]]
    assert subject.embedded == ["a", "b", "c", "d", "e", "f", "g"]


def test_a_prompt_longer_than_a_step_runs_alone_when_its_turn_comes() -> None:
    subject = WholePrompts(config())
    for name, tokens in (("a", 3), ("long", 48), ("b", 3), ("longer", 47), ("c", 3)):
        subject.add_prompt(name, tokens)
    steps = [subject.plan() for _ in range(2)]
    while subject.sent:
        subject.receive()
        steps.append(subject.plan())
    assert [each for each in steps if each] == [["a"], ["long"], ["b"], ["longer"], ["c"]]


def test_shorter_prompts_that_keep_coming_do_not_delay_a_long_one() -> None:
    subject = WholePrompts(config(max_slots=64))
    names = map(str, count())
    subject.add_prompt("long", 48)
    for _ in range(20):
        subject.add_prompt(next(names), 4)
    assert subject.plan() == ["long"]
    subject.add_prompt("long again", 48)
    before = []
    while (planned := subject.plan()) != ["long again"]:
        before += planned
        subject.add_prompt(next(names), 4)
        subject.receive()
    assert before == list(map(str, range(20))), "only those that came before it are planned first"


def test_a_prompt_of_one_token_is_a_prompt_like_others() -> None:
    subject = WholePrompts(config())
    for name, tokens in (("a", 1), ("b", 14), ("c", 1), ("d", 1)):
        subject.add_prompt(name, tokens)
    assert [subject.plan(), subject.plan()] == [["a", "b", "c"], ["d"]]


def test_a_plan_may_use_the_pages_of_the_plan_in_flight() -> None:
    subject = WholePrompts(config(num_pages=12))
    for name in ("a", "b", "c"):
        subject.add_prompt(name, 48)
    assert [subject.plan(), subject.plan()] == [["a"], ["b"]]
    first, second = (set(plan.seqs[0].pages) for plan in subject.sent)  # type: ignore[union-attr]
    assert first == second == set(range(12))
    subject.drain()
    assert subject.embedded == ["a", "b", "c"]
    assert subject.scheduler.stats().pages_free == 12


def test_slots_and_pages_bound_a_step() -> None:
    slots = WholePrompts(config(max_slots=3))
    pages = WholePrompts(config(context_length=8, num_pages=2))
    for subject in (slots, pages):
        for name in "abcd":
            subject.add_prompt(name, 2)
    assert slots.plan() == ["a", "b", "c"]
    assert pages.plan() == ["a", "b"]


def test_the_most_urgent_prompt_of_a_client_is_first() -> None:
    subject = WholePrompts(config())
    for name, priority in (("a", 0), ("b", 1), ("c", -1), ("d", 0)):
        subject.add_prompt(name, 10, priority=priority)
    subject.drain()
    assert subject.embedded == ["c", "a", "d", "b"]


def test_clients_take_turns_and_no_running_prompt_gives_way() -> None:
    subject = WholePrompts(config())
    flood, small = Client("flood"), Client("small")
    for index in range(12):
        subject.add_prompt(f"flood {index}", 8, client=flood)
    assert subject.plan() == ["flood 0", "flood 1"]
    subject.add_prompt("small", 8, client=small)
    assert subject.plan() == ["small", "flood 2"]
    assert subject.scheduler.stats().retractions == 0
    subject.drain()
    assert all(times == 1 for times in subject.answered.values())


def test_a_prompt_that_leaves_while_it_is_computed_frees_its_pages_and_slot_at_once() -> None:
    subject = WholePrompts(config(max_slots=1, num_pages=12))
    subject.add_prompt("a", 48)
    subject.add_prompt("b", 48)
    subject.plan()
    assert subject.plan() == []
    subject.scheduler.finish("a")
    assert subject.scheduler.stats().pages_free == 12
    assert subject.plan() == ["b"]
    subject.drain()
    assert subject.embedded == ["b"]


def test_prompts_are_computed_again_after_the_workers_have_died() -> None:
    subject = WholePrompts(config())
    for name in ("a", "b", "c"):
        subject.add_prompt(name, 10)
    assert [subject.plan(), subject.plan()] == [["a"], ["b"]]
    subject.restart_workers()
    subject.drain()
    assert sorted(subject.embedded) == ["a", "b", "c"]


def test_an_embedding_that_is_not_numbers_ends_its_request_alone() -> None:
    subject = WholePrompts(config())
    subject.add_prompt("a", 4, nan=True)
    subject.add_prompt("b", 4)
    subject.plan()
    subject.receive()
    assert (subject.embedded, subject.live()) == (["b"], [])


def test_a_prompt_may_fill_the_context_and_not_exceed_it() -> None:
    subject = WholePrompts(config(context_length=32))
    subject.add_prompt("a", 32)
    with pytest.raises(SequenceTooLong, match="the prompt has 33 tokens and this server accepts 1 to 32 tokens"):
        subject.add_prompt("b", 33)
    subject.drain()
    assert subject.embedded == ["a"]


@pytest.mark.parametrize("options", [{"max_new_tokens": 1}, {"max_new_tokens": 0, "prompt_logprobs": True}])
def test_sequences_that_need_logits_are_refused(options: dict[str, int]) -> None:
    subject = WholePrompts(config())
    with pytest.raises(ValueError, match="samples tokens"):
        subject.scheduler.add(sequence("a", range(3), SamplingParams(), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        lambda: plan_limits(64, 64, whole_prompts=True),
        lambda: plan_limits(64, 64, whole_prompts=True, enable_prefix_cache=False, num_snapshots=1),
        lambda: plan_limits(64, 64, whole_prompts=True, enable_prefix_cache=False, worker_drafter="mtp"),
        lambda: plan_limits(
            *(64, 64), whole_prompts=True, enable_prefix_cache=False, window_tables=(WindowTable(Window(8, False), 64),)
        ),
    ],
)
def test_whole_prompts_keep_nothing_for_others(changed: Callable[[], SchedulerConfig]) -> None:
    with pytest.raises(ValueError, match="whole prompts share no prefixes"):
        changed()
