"""Images of any size change no bit in any company: tokens and log-probabilities are compared exactly."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.server.scheduler.images import PlacedTile, Tile
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.speculation import speculation
from numaserve.server.speculation.drafter import Drafters

from tests.support import checkpoints, grid_vision, kimi_vision, pixtral
from tests.support.drafters import NoDrafters
from tests.support.played_drafts import played
from tests.support.predicting import add_predictor
from tests.support.rank_group import RankGroup
from tests.support.same_bits import GREEDY, SAMPLED, make_group, scheduler_config
from tests.support.traffic import Answer, Request, Traffic, assert_serves, each_alone, one_by_one

SHAPES = ((5, 3), (1, 7), (8, 8), (2, 2), (3, 10))  # rows and columns of features
PLACES = 2  # of the feature pool: features make way, and are made again
ROWS = grid_vision.MOST // grid_vision.SQUARE**2
ROWS_OF_PIXTRAL = (pixtral.EDGE // grid_vision.SQUARE) ** 2
FEW_PAGES = 11  # the longest request needs 10
SNAPSHOTS = 8  # of the states of hybrid models
DRAFTS = 9
# Each string is an image, by its number. Each number is a text of as many tokens. Images lie over edges of pages (32)
# and chunks (64), and texts follow that are as far from them as they are long.
PROMPTS: list[tuple[int | str, ...]] = [
    (5, "0", 12),
    (28, "1", 40),
    (60, "2", 40, "3", 7),
    ("0", 3, "1", 1),
    (1, "4", 100, "2", 40),
    (254, "3", 30),
    (28, "1", 40),
    (70,),
    (20, "4", 2, "4", 60),
]
TWINS = 1, 6  # prompts with the same tokens and other images
LONG = (0, 1, 2, 3, 6, 7)  # requests that grow by three pages or four: they make others give way


@dataclass
class Subject:
    """A group of workers, requests, and the answers to each of them alone, in one chunk where it fits a step."""

    group: RankGroup
    requests: list[Request]
    alone: list[Answer]
    limits: dict[str, Any]

    def traffic(self, *, ahead: int = 2, drafters: Drafters | None = None, **limits: object) -> Traffic:
        """A scheduler before the group, with these changes of its limits."""
        return Traffic(self.group, config(**self.limits | limits), ahead=ahead, drafters=drafters)


def config(**changes: object) -> SchedulerConfig:
    made = {"rows_per_tile": ROWS, "placeholder": grid_vision.IMAGE_TOKEN, "feature_tiles": PLACES}
    return scheduler_config(**made | changes)


def requests(newline: int | None = None) -> list[Request]:
    """The requests. `newline` is the token between two rows of an image's grid; None: there is none."""
    rng = np.random.default_rng(0)
    tiles = [Tile(number, sha256(bytes([number])).digest(), *shape) for number, shape in enumerate(SHAPES)]
    tiles.append(Tile(1, sha256(b"other").digest(), *SHAPES[1]))
    found: list[Request] = []
    for index, parts in enumerate(PROMPTS):
        prompt: list[int] = []
        images: list[PlacedTile] = []
        for part in parts:
            if isinstance(part, str):
                images.append(PlacedTile(len(prompt), tiles[int(part)], 0 if newline is None else 1))
                prompt += placeholders(tiles[int(part)], newline)
            else:
                prompt += rng.integers(3, 490, part).tolist()
        sampling = SAMPLED[index // 3] if index % 3 == 2 else GREEDY
        found.append(Request(prompt, sampling, 100 if index in LONG else 6, images=tuple(images)))
    one, other = TWINS
    start, tile, gap = found[one].images[0]
    if newline is None:  # The same number of rows in another grid: texts after it have other coordinates.
        found[other] = replace(found[one], images=(PlacedTile(start, Tile(tile.number, b"turned", 7, 1)),))
    else:
        found[other] = replace(found[one], images=(PlacedTile(start, Tile(0, b"other", 1, 7), gap),))
    return found


def placeholders(tile: Tile, newline: int | None) -> list[int]:
    """The tokens of an image."""
    if newline is None:
        return [grid_vision.IMAGE_TOKEN] * tile.features
    return ([newline, *[grid_vision.IMAGE_TOKEN] * tile.cols] * tile.rows)[1:]


@pytest.fixture(
    scope="module",
    params=[
        *((1, "qwen3_vl"), (3, "qwen3_vl"), (2, "qwen3_5"), (2, "mistral3"), (3, "pixtral")),
        (3, "paddleocr_vl"),
        (2, "kimi_k25"),
    ],
    ids=str,
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    tp, name = request.param
    path, images = tmp_path_factory.mktemp(name), grid_vision.random_images(SHAPES)
    limits: dict[str, Any] = {"num_snapshots": SNAPSHOTS} if name == "qwen3_5" else {}
    held, newline = dict(limits), None
    model = checkpoints.build((grid_vision.CASES | pixtral.CASES | kimi_vision.CASES)[name]())
    if name in pixtral.CASES:
        folder, pixels = pixtral.save(model, path), pixtral.in_store(images)
        limits, newline = {"rows_per_tile": ROWS_OF_PIXTRAL}, pixtral.BREAK_TOKEN
    elif name in kimi_vision.CASES:
        folder, pixels = kimi_vision.save(model, path), kimi_vision.in_store(images)
        limits = {"rows_per_tile": kimi_vision.MOST}
    else:
        folder, pixels = grid_vision.save(model, path), grid_vision.in_store(images)
    with make_group(folder, tp, tiles=pixels, feature_tiles=PLACES, **held) as group:
        asked = requests(newline)
        alone = each_alone(group, config(**limits), asked)
        one, other = TWINS
        assert alone[one] != alone[other]
        yield Subject(group, asked, alone, limits)


def test_a_batch_chunks_and_cached_prefixes_change_no_bit_of_images_of_any_size(subject: Subject) -> None:
    for ahead, changes in ((1, {}), (2, {"max_step_tokens": 64}), (2, {"enable_prefix_cache": True})):
        traffic = subject.traffic(ahead=ahead, **changes)
        assert one_by_one(traffic, subject.requests) == subject.alone
        assert_serves(traffic, subject.requests, subject.alone)
        assert traffic.scheduler.features.runs > len(SHAPES)  # in a pool of fewer places
    assert traffic.scheduler.stats().prefix_hit_tokens > 0


def test_runs_of_a_grids_tower_in_parts_change_no_bit(subject: Subject) -> None:
    traffic = subject.traffic(target_itl_s=1e-6)  # far less than a run takes
    assert_serves(traffic, subject.requests, subject.alone)
    assert any(work.begin for plan in traffic.plans for work in plan.tower or [])


def test_retractions_change_no_bit_of_images_of_any_size(subject: Subject) -> None:
    for enable_prefix_cache in (False, True):
        traffic = subject.traffic(num_pages=FEW_PAGES, enable_prefix_cache=enable_prefix_cache)
        assert_serves(traffic, subject.requests, subject.alone)
        assert traffic.scheduler.stats().retractions > 0


def test_draft_tokens_change_no_bit_of_images_of_any_size(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    if "num_snapshots" in subject.limits:
        pytest.skip("states of this group go back by no draft token")
    monkeypatch.setattr(speculation, "BLIND", 12)
    traffic = subject.traffic(drafters=played(subject.requests, subject.alone, wrong=7), enable_prefix_cache=True)
    assert one_by_one(traffic, subject.requests) == subject.alone
    assert_serves(traffic, subject.requests, subject.alone)
    counts = traffic.scheduler.drafted
    assert min(counts["played", accepted] for accepted in (True, False)) > 100


@pytest.mark.parametrize("tp", [1, 2])
def test_a_layer_that_predicts_changes_no_bit_of_images_of_any_size(tp: int, tmp_path: Path) -> None:
    folder = grid_vision.save(checkpoints.build(grid_vision.CASES["qwen3_5"]()), tmp_path)
    add_predictor("qwen3_5", folder, last="model.language_model.layers.3.")
    pixels, asked = grid_vision.in_store(grid_vision.random_images(SHAPES)), requests()
    states = {"num_snapshots": SNAPSHOTS, "max_drafts": DRAFTS}
    with make_group(folder, tp, tiles=pixels, feature_tiles=PLACES, mtp=True, **states) as group:
        alone = each_alone(group, config(num_snapshots=SNAPSHOTS), asked)
        for ahead, changes in ((1, {}), (2, {"enable_prefix_cache": True, "num_pages": FEW_PAGES})):
            limits = config(worker_drafter="mtp", **states, **changes)
            traffic = Traffic(group, limits, ahead=ahead, drafters=NoDrafters())
            assert_serves(traffic, asked, alone)
            assert traffic.scheduler.drafted["mtp", False] > 50
