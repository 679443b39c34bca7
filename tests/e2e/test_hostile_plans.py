"""What real workers do with frames and plans that no front end sends: they say no, and serve on."""

from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest
import transformers as hf
from numaserve.workers.interface.protocol import (
    PROTOCOL_VERSION,
    Failure,
    Launch,
    SamplingParams,
    SeqPlan,
    SeqResult,
    SlotInit,
    StepPlan,
    encode,
)

from tests.support import checkpoints
from tests.support.plan_limits import capacity
from tests.support.rank_group import RankGroup

VOCAB = checkpoints.VOCAB
# The context is no multiple of a page, so that its last page has positions past the end.
LIMITS = {"num_pages": 8, "context_length": 100, "max_slots": 4, "max_step_tokens": 64, "max_logit_rows": 16}
GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = hf.LlamaConfig(**checkpoints.sizes(144, 9, 3, 160, layers=1, head_dim=16))
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    return checkpoints.save(checkpoints.randomise(model), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def group(tp: int, model: Path) -> Iterator[RankGroup]:
    with RankGroup(model, tp, **LIMITS) as group:
        yield group


def plan(step_id: int, *seqs: SeqPlan) -> StepPlan:
    return StepPlan(step_id, list(seqs))


def seq(slot: int = 0, sampling: SamplingParams = GREEDY, **fields: Any) -> SeqPlan:
    given = {"start": 0, "tokens": PROMPT, "pages": [0], "init": SlotInit(sampling), "sample": True, **fields}
    return SeqPlan(slot=slot, **given)


def is_served(group: RankGroup) -> None:
    """A prompt and one token after it, in a slot and a page of its own."""
    first = group.run(plan(1, seq(3, pages=[7])))
    second = group.run(plan(2, SeqPlan(slot=3, start=len(PROMPT), tokens=[], from_previous=True, sample=True)))
    tokens = [result.seqs[0].token for result in (first, second)]
    again = group.run(plan(3, seq(2, pages=[6]), seq(1, tokens=[*PROMPT, tokens[0]], pages=[5])))
    assert [result.token for result in again.seqs] == tokens


IMPOSSIBLE = {
    "a slot past the last": seq(slot=4),
    "a negative slot": seq(slot=-1),
    "a slot of 40 bits": seq(slot=1 << 40),
    "a page past the last": seq(pages=[8]),
    "a negative page": seq(pages=[-1]),
    "a page of 40 bits": seq(pages=[1 << 40]),
    "more pages than a sequence may have": seq(pages=[0, 1, 2, 3, 4]),
    "a token id past the vocabulary": seq(tokens=[5, VOCAB]),
    "a negative token id": seq(tokens=[-1]),
    "a token id of 40 bits": seq(tokens=[1 << 40]),
    "no tokens": seq(tokens=[]),
    "more tokens than a step has": seq(tokens=[5] * 65, pages=[0, 1, 2]),
    "positions without a page": seq(tokens=[5] * 33),
    "a start without a page": seq(start=32),
    "a negative start": seq(start=-1),
    "a start of 40 bits": seq(start=1 << 40),
    "a previous sample that was never taken": seq(tokens=[], from_previous=True),
    "more rows of logits than a step has": seq(tokens=[5] * 17, prompt_logprobs=[5] * 17),
    "more targets than tokens": seq(prompt_logprobs=[5] * 5),
    "a target past the vocabulary": seq(prompt_logprobs=[VOCAB]),
    "a bias past the vocabulary": seq(sampling=SamplingParams(logit_bias={VOCAB: 1.0})),
    "a bias on a negative token": seq(sampling=SamplingParams(logit_bias={-1: 1.0})),
    "a suppressed token past the vocabulary": seq(sampling=SamplingParams(suppress=[VOCAB])),
    "a prompt history past the vocabulary": seq(
        init=SlotInit(SamplingParams(presence_penalty=1.0), prompt_history=[VOCAB])
    ),
    "a negative output history": seq(init=SlotInit(SamplingParams(presence_penalty=1.0), output_history=[-1])),
    "a negative seed": seq(sampling=SamplingParams(seed=-1)),
    "a top_k of 40 bits": seq(sampling=SamplingParams(top_k=1 << 40)),
}


def drafted(drafts: list[int], **fields: Any) -> StepPlan:
    return StepPlan(77, [seq(1, pages=[4]), seq(**fields)], drafts=drafts)


IMPOSSIBLE_DRAFTS = {
    "fewer numbers of drafts than sequences": drafted([1]),
    "more numbers of drafts than sequences": drafted([1, 1, 1]),
    "as many drafts as tokens": drafted([0, len(PROMPT)]),
    "less than no drafts": drafted([0, -1]),
    "drafts in 40 bits": drafted([0, 1 << 40]),
    "drafts before no sample": drafted([0, 1], sample=False),
    "drafts and targets": drafted([0, 1], prompt_logprobs=[5]),
    "more drafts than rows of logits": drafted([0, 16], tokens=[5] * 17),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE_DRAFTS)
def test_drafts_that_cannot_be_verified_fail_alone(group: RankGroup, kind: str) -> None:
    group.send(IMPOSSIBLE_DRAFTS[kind])
    assert {failure.step_id for failure in group.receive_failures()} == {77}
    is_served(group)


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_a_plan_that_cannot_be_run_fails_alone(group: RankGroup, kind: str) -> None:
    group.send(plan(77, seq(1, pages=[4]), IMPOSSIBLE[kind]))
    failures = group.receive_failures()
    assert [(failure.rank, failure.step_id) for failure in failures] == [(rank, 77) for rank in range(len(failures))]
    assert len({failure.message for failure in failures}) == 1
    assert failures[0].message
    is_served(group)


SAMPLED = SamplingParams(temperature=0.9, seed=3, repetition_penalty=1.3, presence_penalty=0.5, logprobs=3)


def go_on(start: int, pages: list[int]) -> SeqPlan:
    return SeqPlan(slot=1, start=start, tokens=[], from_previous=True, pages=pages, sample=True)


def begun(group: RankGroup) -> list[SeqResult]:
    """A sequence in slot 1 that fills its page, 4."""
    prompt = PROMPT * 8
    return group.run(plan(1, seq(1, tokens=prompt, pages=[4], init=SlotInit(SAMPLED, prompt_history=prompt)))).seqs


def continued(group: RankGroup) -> list[list[SeqResult]]:
    """Its next tokens, in page 5, with another sequence that takes page 6 in between."""
    plans = [plan(2, go_on(32, [5])), plan(3, seq(2, tokens=[9] * 32, pages=[6])), plan(4, go_on(33, []))]
    return [group.run(each).seqs for each in plans]


@pytest.mark.parametrize("kind", IMPOSSIBLE)
@pytest.mark.parametrize(
    "before", [seq(1, pages=[6]), go_on(32, [6])], ids=["a slot begun anew", "a page table that grows"]
)
def test_a_refused_plan_leaves_slots_and_page_tables_as_they_were(group: RankGroup, before: SeqPlan, kind: str) -> None:
    expected = [begun(group), *continued(group)]
    first = begun(group)
    group.send(plan(77, before, IMPOSSIBLE[kind]))
    assert {failure.step_id for failure in group.receive_failures()} == {77}
    assert [first, *continued(group)] == expected


def test_more_sequences_than_slots_fail_alone(group: RankGroup) -> None:
    group.send(plan(78, *(seq(index % 4, pages=[index]) for index in range(5))))
    assert {failure.step_id for failure in group.receive_failures()} == {78}
    is_served(group)


@pytest.mark.parametrize(
    "values",
    [
        *({name: value} for name in ("temperature", "top_p", "min_p") for value in (nan, inf, -inf, -1.0, 1e-30, 1e30)),
        *({"repetition_penalty": value} for value in (nan, inf, 0.0, -1.0)),
        *({name: value} for name in ("presence_penalty", "frequency_penalty") for value in (nan, inf, -inf)),
        {"logit_bias": {5: nan, 6: inf, 7: -inf}},
        {"suppress": list(range(VOCAB)), "min_position": 1000},
        {"top_k": -5},
        {"logprobs": 10_000},
        {"logprobs": -10_000},
        {"min_position": -(1 << 31)},
    ],
)
def test_senseless_sampling_values_still_give_a_token_of_the_vocabulary(
    group: RankGroup, values: dict[str, Any]
) -> None:
    sampling = msgspec.structs.replace(SamplingParams(seed=1), **values)
    result = group.run(plan(1, seq(0, sampling, init=SlotInit(sampling, prompt_history=PROMPT))))
    assert 0 <= result.seqs[0].token < VOCAB
    is_served(group)


def test_a_sequence_may_fill_its_last_page(group: RankGroup) -> None:
    group.run(plan(1, seq(0, tokens=[5] * 64, pages=[0, 1, 2, 3], sample=False)))
    result = group.run(plan(2, SeqPlan(slot=0, start=64, tokens=[5] * 64, sample=True)))
    assert 0 <= result.seqs[0].token < VOCAB


GARBAGE = {
    "nothing": b"",
    "only a version": bytes([PROTOCOL_VERSION]),
    "another version": bytes([PROTOCOL_VERSION + 1]) + encode(plan(1, seq()))[1:],
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins.",
    "half a plan": encode(plan(1, seq()))[:-5],
    "a plan and more": encode(plan(1, seq())) + b"\x00",
    "ones": b"\xff" * 10_000,
    "deep nesting": bytes([PROTOCOL_VERSION]) + b"\x91" * 100_000,
    "a length that lies": bytes([PROTOCOL_VERSION]) + b"\xdd\xff\xff\xff\xff",
    "another type": encode(StepPlan("one", "two")),  # type: ignore[arg-type]
    "an answer": encode(Failure(0, -1, "not for a worker")),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_dropped(group: RankGroup, kind: str) -> None:
    for _ in range(3):
        group.send_frames(GARBAGE[kind])
    group.send_frames(b"\x01", GARBAGE[kind])
    is_served(group)


def test_every_truncation_of_a_plan_is_dropped(group: RankGroup) -> None:
    frame = encode(plan(1, seq()))
    for length in range(len(frame)):
        group.send_frames(frame[:length])
    is_served(group)


def test_a_second_launch_changes_nothing(group: RankGroup) -> None:
    fields: dict[str, Any] = dict.fromkeys(Launch.__struct_fields__, 1) | {
        "model": "missing",
        "cpus": [[0]],
        "nodes": [0],
        "weights": [1],
        "capacity": capacity(),
    }
    group.send_frames(encode(Launch(**fields)))
    is_served(group)


@pytest.mark.parametrize("told", [0, 1])
def test_a_rank_that_alone_was_sent_a_plan_does_not_outlive_the_front_end(model: Path, told: int) -> None:
    with RankGroup(model, 2, **LIMITS) as group:
        is_served(group)
        group.send_to(told, plan(9, seq()))
        assert group.orphan() == [1, 1]
        assert group.left_behind() == []


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), 1e9])
def test_a_deadline_that_cannot_be_is_refused_by_every_rank(group: RankGroup, seconds: float) -> None:
    group.send(StepPlan(79, [seq()], deadline_s=seconds))
    failures = group.receive_failures()
    assert {failure.step_id for failure in failures} == {79}
    assert all("deadline" in failure.message for failure in failures)
    is_served(group)


def test_a_rank_waits_for_another_as_long_as_the_plan_says(model: Path) -> None:
    with RankGroup(model, 2, **LIMITS) as group:
        group.send_to(1, StepPlan(1, [seq()], deadline_s=2.0))
        failure = group.receive_failure(1)  # long before the launch's deadline
    assert failure.step_id == -1 and "rank 0" in failure.message
