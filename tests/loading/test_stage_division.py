"""The division of blocks among pipeline stages."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path

from numaserve.workers.layers.division import divide, stage_blocks
from numaserve.workers.models.load import load_model_config

from tests.support.full_shapes import DEEPSEEK_R1, LLAMA_70B


def all_divisions(blocks: int, stages: int) -> Iterator[list[range]]:
    for ends in combinations(range(1, blocks), stages - 1):
        yield [range(*each) for each in pairwise((0, *ends, blocks))]


def quality(division: Sequence[range], sizes: Sequence[int], head: int) -> tuple[int, int]:
    """The largest stage without the head, and the sum of squares with it."""
    stages = [sum(sizes[block] for block in stage) for stage in division]
    return max(stages), sum(size**2 for size in [*stages[:-1], stages[-1] + head])


def test_no_division_is_better() -> None:
    rng = random.Random(5)
    for _ in range(100):
        sizes = tuple(rng.choice((3, 10, 11)) for _ in range(rng.randint(1, 9)))
        head, stages = rng.choice((0, 4, 30)), rng.randint(1, len(sizes))
        best = min(quality(each, sizes, head) for each in all_divisions(len(sizes), stages))
        found = divide(sizes, head, stages)
        assert [block for stage in found for block in stage] == list(range(len(sizes)))
        assert (len(found), quality(found, sizes, head)) == (stages, best)


def test_the_first_of_equal_stages_have_the_blocks_that_are_left() -> None:
    for head in (0, 5):
        assert [len(each) for each in divide((100,) * 61, head, 2)] == [31, 30]
        assert [len(each) for each in divide((100,) * 94, head, 4)] == [24, 24, 23, 23]


def test_dense_blocks_at_the_start_count_little(tmp_path: Path) -> None:
    for model, stages in ((DEEPSEEK_R1, [32, 29]), (LLAMA_70B, [40, 40])):
        (tmp_path / "config.json").write_text(json.dumps(model))
        decoder = load_model_config(tmp_path).decoder
        assert [len(each) for each in stage_blocks(decoder, 2)] == stages
