"""Images that no front end plans, in plans for workers of a model that sees. They refuse, and serve on."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.protocol import (
    PlacedRows,
    SamplingParams,
    SeqPlan,
    SeqResult,
    SlotInit,
    StepPlan,
    TowerWork,
)

from tests.support import checkpoints, vision
from tests.support.rank_group import RankGroup
from tests.support.same_bits import save_tiny_model

GREEDY = SamplingParams(temperature=0.0, logprobs=2)
PROMPT = [*range(5, 10), *[vision.IMAGE_TOKEN] * 9, *range(10, 36)]
ROWS, TILES, PLACES = 9, 2, 2  # rows of features of a tile, and tiles of the image store
SIZES: dict[str, Any] = {"num_pages": 12, "context_length": 320, "max_slots": 4, "max_step_tokens": 64}


@pytest.fixture(scope="module", params=[(1, "native"), (2, "native"), (1, "reference")], ids=str)
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    tp, backend = request.param
    model = checkpoints.build(vision.CASES["smolvlm"]())
    folder, tiles = vision.save(model, tmp_path_factory.mktemp("model")), vision.random_tiles(model.config, TILES)
    with RankGroup(folder, tp, tiles=tiles, feature_tiles=PLACES, backend=backend, **SIZES) as group:
        yield group


def prompt(slot: int, pages: list[int]) -> SeqPlan:
    return SeqPlan(slot=slot, start=0, tokens=PROMPT, pages=pages, init=SlotInit(GREEDY), sample=True)


def go_on(slot: int) -> SeqPlan:
    return SeqPlan(slot=slot, start=len(PROMPT), tokens=[], from_previous=True, sample=True)


def begun(group: RankGroup, tile: int = 1) -> SeqResult:
    """A prompt with a tile, whose features are made in the same step."""
    plan = StepPlan(1, [prompt(0, [0, 1])], tower=[TowerWork(tile, 1)], placed=[PlacedRows(0, 5, ROWS, ROWS)])
    return group.run(plan).seqs[0]


PLACED = [PlacedRows(1, 5, ROWS, 0)]
IMPOSSIBLE: dict[str, tuple[Sequence[TowerWork], Sequence[PlacedRows]]] = {
    "a tile past the last": ([TowerWork(TILES, 0)], PLACED),
    "a negative tile": ([TowerWork(-1, 0)], PLACED),
    "a tile of 40 bits": ([TowerWork(1 << 40, 0)], PLACED),
    "a tile of 80 bits": ([TowerWork(1 << 63, 0)], PLACED),
    "a place past the last": ([TowerWork(0, PLACES)], PLACED),
    "a negative place": ([TowerWork(0, -1)], PLACED),
    "a place of 40 bits": ([TowerWork(0, 1 << 40)], PLACED),
    "parts that nothing precedes": ([TowerWork(0, 0, 1, 2)], PLACED),
    "parts past the last": ([TowerWork(0, 0, 0, 1 << 40)], PLACED),
    "a negative part": ([TowerWork(0, 0, -1)], PLACED),
    "a sequence past the last": ([], [PlacedRows(2, 5, ROWS, 0)]),
    "a sequence of 40 bits": ([], [PlacedRows(1 << 40, 5, ROWS, 0)]),
    "a negative sequence": ([], [PlacedRows(-1, 5, ROWS, 0)]),
    "positions past the prompt": ([], [PlacedRows(1, len(PROMPT) - 1, 2, 0)]),
    "positions before the prompt": ([], [PlacedRows(0, 5, ROWS, 0)]),
    "no positions": ([], [PlacedRows(1, 5, 0, 0)]),
    "positions of 40 bits": ([], [PlacedRows(1, 5, 1 << 40, 0)]),
    "rows past the pool": ([], [PlacedRows(1, 5, ROWS, PLACES * ROWS - 1)]),
    "a negative row": ([], [PlacedRows(1, 5, ROWS, -1)]),
    "a row of 40 bits": ([], [PlacedRows(1, 5, ROWS, 1 << 40)]),
    "a position twice": ([], [PlacedRows(1, 5, ROWS, 0), PlacedRows(1, 5 + ROWS - 1, 1, 0)]),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_images_that_cannot_be_had_fail_alone(group: RankGroup, kind: str) -> None:
    expected = begun(group)
    after = group.run(StepPlan(2, [go_on(0)])).seqs
    assert begun(group) == expected
    tower, placed = IMPOSSIBLE[kind]
    group.send(StepPlan(77, [go_on(0), prompt(1, [2, 3])], tower=list(tower), placed=list(placed)))
    failures = group.receive_failures()
    assert {failure.step_id for failure in failures} == {77}
    assert len({failure.message for failure in failures}) == 1
    assert group.run(StepPlan(3, [go_on(0)])).seqs == after


def test_features_stay_in_their_place_until_another_tile_takes_it(group: RankGroup) -> None:
    expected = begun(group)
    assert begun(group, tile=0) != expected
    assert begun(group) == expected
    placed = [PlacedRows(0, 5, ROWS, ROWS)]
    assert group.run(StepPlan(4, [prompt(0, [0, 1])], placed=placed)).seqs == [expected]  # without a run
    assert group.run(StepPlan(5, [prompt(0, [0, 1])])).seqs != [expected]


def test_a_run_in_parts_with_steps_between_them_has_the_same_bits(group: RankGroup) -> None:
    expected = begun(group)
    parts = len(group.ready[0].tower_parts)
    assert parts == 1 + 3 * 5 + 1
    assert all(sum(ready.tower_parts) == pytest.approx(1) for ready in group.ready)
    group.run(StepPlan(3, [go_on(0)], tower=[TowerWork(0, 0, 0, 2)]))
    for part in range(2, parts):
        group.run(StepPlan(4, [prompt(1, [2, 3])], tower=[TowerWork(0, 0, part, part + 1)]))
    placed = [PlacedRows(0, 5, ROWS, 0)]
    in_parts = group.run(StepPlan(5, [prompt(0, [0, 1])], placed=placed)).seqs
    assert in_parts == group.run(StepPlan(6, [prompt(0, [0, 1])], tower=[TowerWork(0, 0)], placed=placed)).seqs
    assert in_parts != [expected]  # of another tile


def test_ranks_tell_the_work_and_the_time_of_the_tower(group: RankGroup) -> None:
    plan = StepPlan(6, [prompt(0, [0, 1])], tower=[TowerWork(0, 0)])
    result = group.run(plan)
    assert 0 < result.tower_ns <= result.worker_ns
    assert group.run(StepPlan(7, [go_on(0)])).tower_ns == 0
    assert all(sum(terms.row_flops for terms in ready.tower_terms) > 0 for ready in group.ready)
    assert all("tower merge_rows" in {each.name for each in rank.operations} for rank in group.profile())


def test_a_tile_may_have_more_patches_than_a_sequence_has_tokens(tmp_path: Path) -> None:
    model = checkpoints.build(vision.CASES["smolvlm"]())
    assert (model.config.vision_config.image_size // model.config.vision_config.patch_size) ** 2 > 32
    folder, tiles = vision.save(model, tmp_path), vision.random_tiles(model.config, TILES)
    sizes = SIZES | {"context_length": 32, "num_pages": 4}
    with RankGroup(folder, 1, tiles=tiles, feature_tiles=PLACES, **sizes) as other:
        assert other.run(StepPlan(1, [], tower=[TowerWork(1, 1)])).tower_ns > 0


def test_a_model_without_a_tower_refuses_images(tmp_path: Path) -> None:
    with RankGroup(save_tiny_model("llama", tmp_path), 1, **SIZES) as other:
        other.send(StepPlan(7, [prompt(0, [0, 1])], tower=[TowerWork(0, 0)]))
        assert "the model was loaded without a vision tower" in other.receive_failures()[0].message
        other.send(StepPlan(8, [prompt(0, [0, 1])], placed=[PlacedRows(0, 5, 1, 0)]))
        assert "image features that are not in the pool of 0 rows" in other.receive_failures()[0].message
