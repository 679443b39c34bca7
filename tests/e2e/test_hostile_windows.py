"""Window tables that no front end makes, in plans for workers of a model with a window. They refuse, and serve on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, SeqResult, SlotInit, StepPlan, WindowWork

from tests.support.rank_group import RankGroup
from tests.support.same_bits import save_tiny_model

GREEDY = SamplingParams(temperature=0.0, logprobs=2)
PROMPT = list(range(5, 45))
WINDOW_PAGES = 6


@pytest.fixture(scope="module", params=[(1, "native"), (2, "native"), (1, "reference")], ids=str)
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    tp, backend = request.param
    model = save_tiny_model("gemma2", tmp_path_factory.mktemp("model"))
    sizes: dict[str, Any] = {"num_pages": 12, "context_length": 320, "max_slots": 4, "max_step_tokens": 64}
    with RankGroup(model, tp, window_pages=[WINDOW_PAGES], backend=backend, **sizes) as group:
        yield group


def prompt(slot: int, pages: list[int]) -> SeqPlan:
    return SeqPlan(slot=slot, start=0, tokens=PROMPT, pages=pages, init=SlotInit(GREEDY), sample=True)


def go_on(slot: int) -> SeqPlan:
    return SeqPlan(slot=slot, start=len(PROMPT), tokens=[], from_previous=True, sample=True)


def begun(group: RankGroup) -> SeqResult:
    return group.run(StepPlan(1, [prompt(0, [0, 1])], windows=[WindowWork(0, 0, 0, [0, 1])])).seqs[0]


IMPOSSIBLE = {
    "none at all": [],
    "a sequence past the last": [WindowWork(2, 0, 0, [2, 3])],
    "a sequence of 40 bits": [WindowWork(1 << 40, 0, 0, [2, 3])],
    "a negative sequence": [WindowWork(-1, 0, 0, [2, 3])],
    "a window past the last": [WindowWork(1, 1, 0, [2, 3])],
    "a negative window": [WindowWork(1, -1, 0, [2, 3])],
    "a window of 40 bits": [WindowWork(1, 1 << 40, 0, [2, 3])],
    "a page past the last": [WindowWork(1, 0, 0, [2, WINDOW_PAGES])],
    "a negative page": [WindowWork(1, 0, 0, [-1, 2])],
    "a page of 40 bits": [WindowWork(1, 0, 0, [2, 1 << 40])],
    "too few pages": [WindowWork(1, 0, 0, [2])],
    "more pages than a sequence has": [WindowWork(1, 0, 0, [2, 3] * 6)],
    "absent pages that are read": [WindowWork(1, 0, 8, [2, 3])],
    "a part of a block": [WindowWork(1, 0, 1, [2, 3])],
    "less than no absent pages": [WindowWork(1, 0, -8, [2, 3])],
    "absent pages of 40 bits": [WindowWork(1, 0, 1 << 40, [2, 3])],
    "absent pages of 80 bits": [WindowWork(1, 0, 1 << 63, [2, 3])],
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_window_tables_that_cannot_be_had_fail_alone(group: RankGroup, kind: str) -> None:
    expected = begun(group)
    after = group.run(StepPlan(2, [go_on(0)])).seqs
    assert begun(group) == expected
    group.send(StepPlan(77, [go_on(0), prompt(1, [2, 3])], windows=IMPOSSIBLE[kind]))
    failures = group.receive_failures()
    assert {failure.step_id for failure in failures} == {77}
    assert len({failure.message for failure in failures}) == 1
    assert group.run(StepPlan(3, [go_on(0)])).seqs == after


def test_a_model_without_window_tables_refuses_them(tmp_path: Path) -> None:
    with RankGroup(save_tiny_model("llama", tmp_path), 1, num_pages=12, context_length=320) as other:
        other.send(StepPlan(7, [prompt(0, [0, 1])], windows=[WindowWork(0, 0, 0, [0, 1])]))
        assert "window table 0 is out of range" in other.receive_failures()[0].message
