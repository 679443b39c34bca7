"""Snapshots that no front end names, in plans for workers of a recurrent model. They refuse, and serve on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, SeqResult, SlotInit, StateWork, StepPlan

from tests.support import newcomer
from tests.support.new_models import save_echo
from tests.support.rank_group import RankGroup

GREEDY = SamplingParams(temperature=0.0, logprobs=2)
PROMPT = list(range(5, 45))
MARKED = 33


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    newcomer.register()
    yield save_echo(tmp_path_factory.mktemp("echo"))
    newcomer.unregister()


@pytest.fixture(scope="module", params=[(1, "native"), (2, "native"), (1, "reference")], ids=str)
def group(request: pytest.FixtureRequest, model: Path) -> Iterator[RankGroup]:
    tp, backend = request.param
    sizes: dict[str, Any] = {"num_pages": 12, "context_length": 128, "max_slots": 4, "max_step_tokens": 64}
    with RankGroup(model, tp, num_snapshots=3, backend=backend, **sizes) as group:
        yield group


def prompt(slot: int, pages: list[int], **fields: Any) -> SeqPlan:
    return SeqPlan(slot=slot, start=0, tokens=PROMPT, pages=pages, init=SlotInit(GREEDY), sample=True, **fields)


def rest(slot: int, pages: list[int]) -> SeqPlan:
    """The prompt after the position of the mark, in pages that have what is before it."""
    return SeqPlan(slot, MARKED, PROMPT[MARKED:], pages=pages, init=SlotInit(GREEDY), sample=True)


def stored(group: RankGroup) -> SeqResult:
    """A prompt whose states after some tokens are in snapshot 1."""
    return group.run(StepPlan(1, [prompt(0, [0, 1])], states=[StateWork(0, -1, [(MARKED, 1)])])).seqs[0]


def is_served(group: RankGroup, expected: SeqResult) -> None:
    """From the snapshot, in another slot."""
    plan = StepPlan(2, [prompt(2, [4, 5]), rest(1, [0, 1])], states=[StateWork(1, 1)])
    assert [each.token for each in group.run(plan).seqs] == [expected.token] * 2


IMPOSSIBLE = {
    "a sequence past the last": [StateWork(2)],
    "a sequence of 40 bits": [StateWork(1 << 40)],
    "a negative sequence": [StateWork(-1)],
    "a sequence twice": [StateWork(0), StateWork(0)],
    "a beginning past the last snapshot": [StateWork(1, 3)],
    "a beginning of 40 bits": [StateWork(1, 1 << 40)],
    "a beginning below none": [StateWork(1, -2)],
    "a beginning at position 0": [StateWork(0, 1)],
    "a beginning that is stored": [StateWork(1, 1, [(40, 1)])],
    "a beginning that another one stores": [StateWork(0, -1, [(3, 1)]), StateWork(1, 1)],
    "a mark past the last snapshot": [StateWork(0, -1, [(3, 3)])],
    "a negative mark": [StateWork(0, -1, [(3, -1)])],
    "a mark in 40 bits": [StateWork(0, -1, [(3, 1 << 40)])],
    "a mark at the first token": [StateWork(0, -1, [(0, 0)])],
    "a mark after the last token": [StateWork(0, -1, [(41, 0)])],
    "a mark at a position of 40 bits": [StateWork(0, -1, [(1 << 40, 0)])],
    "marks that go back": [StateWork(0, -1, [(3, 0), (2, 2)])],
    "a snapshot that is stored twice": [StateWork(0, -1, [(3, 0), (4, 0)])],
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_states_that_cannot_be_had_fail_alone(group: RankGroup, kind: str) -> None:
    expected = stored(group)
    group.send(StepPlan(77, [prompt(2, [4, 5]), rest(1, [0, 1])], states=IMPOSSIBLE[kind]))
    failures = group.receive_failures()
    assert {failure.step_id for failure in failures} == {77}
    assert len({failure.message for failure in failures}) == 1
    is_served(group, expected)
