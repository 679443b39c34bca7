"""Images whose tokens see each other change no bit in any company: tokens and log-probabilities are the same."""

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
from numaserve.workers.interface.windows import WindowTable
from numaserve.workers.models.load import load_model_config

from tests.support import checkpoints, gemma4_vision, gemma_vision, vision
from tests.support.played_drafts import played
from tests.support.rank_group import RankGroup
from tests.support.same_bits import BATCH, GREEDY, SAMPLED, make_group, scheduler_config
from tests.support.traffic import Answer, Request, Traffic, assert_serves, each_alone, one_by_one

SHAPES = ((5, 3), (1, 7), (8, 8), (2, 2), (3, 10))  # rows and columns of features of Gemma 4's images
PLACES = 2  # of the feature pool: features make way, and are made again
FEW_PAGES = 11  # the longest request needs 10
DECODES = 20  # tokens of a step next to the largest image
ANCHORS = 40  # window pages
# Each string is an image, by its number. Each number is a text of as many tokens. Images lie over edges of pages (32)
# and blocks (256), at the beginning, and longer than a window (12 or 16).
PROMPTS: list[tuple[int | str, ...]] = [
    (5, "0", 12),
    (28, "1", 40),
    (60, "2", 40, "3", 7),
    ("0", 3, "1", 1),
    (1, "4", 100, "2", 40),
    (244, "3", 30),
    (28, "1", 40),
    (70,),
    (20, "4", 2, "4", 60),
]
TWINS = 1, 6  # prompts with the same tokens and other images
LONG = (0, 1, 2, 3, 6, 7)  # requests that grow by three pages or four: they make others give way


@dataclass
class Subject:
    """A group of workers, requests, and the answers to each of them alone."""

    group: RankGroup
    requests: list[Request]
    alone: list[Answer]
    limits: dict[str, Any]

    def traffic(self, *, ahead: int = 2, drafters: Drafters | None = None, **limits: object) -> Traffic:
        """A scheduler before the group, with these changes of its limits."""
        return Traffic(self.group, config(**self.limits | limits), ahead=ahead, drafters=drafters)


def config(**changes: object) -> SchedulerConfig:
    return scheduler_config(placeholder=gemma_vision.IMAGE_TOKEN, feature_tiles=PLACES, **changes)


def requests_of(tiles: list[Tile]) -> list[Request]:
    rng = np.random.default_rng(0)
    found: list[Request] = []
    for index, parts in enumerate(PROMPTS):
        prompt: list[int] = []
        images: list[PlacedTile] = []
        for part in parts:
            if isinstance(part, str):
                images.append(PlacedTile(len(prompt), tiles[int(part)]))
                prompt += [gemma_vision.IMAGE_TOKEN] * images[-1].tile.features
            else:
                prompt += rng.integers(3, 490, part).tolist()
        sampling = SAMPLED[index // 3] if index % 3 == 2 else GREEDY
        found.append(Request(prompt, sampling, 100 if index in LONG else 6, images=tuple(images)))
    one, other = TWINS
    start, tile = found[one].images[0][:2]
    twin = Tile(3, sha256(b"other").digest(), tile.rows, tile.cols)
    found[other] = replace(found[one], images=(PlacedTile(start, twin),))
    return found


def saved(name: str, folder: Path) -> tuple[np.ndarray, list[tuple[int, int]], int]:
    """Save a model. Return the pixels of its images, their shapes, and the most rows of one."""
    if name == "gemma3":
        model = checkpoints.build(gemma_vision.CASES[name]())
        gemma_vision.save(model, folder)
        rows = gemma_vision.features_of(model.config)
        return vision.random_tiles(model.config, len(SHAPES)), [(1, rows)] * len(SHAPES), rows
    model = gemma4_vision.build(name)
    gemma4_vision.save(model, folder)
    factor = gemma4_vision.factor_of(model.config)
    images = gemma4_vision.random_images(SHAPES, factor)
    return gemma4_vision.in_store(images, factor), list(SHAPES), gemma4_vision.ROWS


@pytest.fixture(
    scope="module",
    params=[(1, "gemma3"), (2, "gemma4-whole"), (3, "gemma3"), (2, "gemma4-inputs"), (3, "gemma4-unified")],
    ids=str,
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Workers with a page table for sliding layers."""
    tp, name = request.param
    folder = tmp_path_factory.mktemp(name)
    pixels, shapes, rows = saved(name, folder)
    tiles = [Tile(number, sha256(bytes([number])).digest(), *shape) for number, shape in enumerate(shapes)]
    asked, whole = requests_of(tiles), name != "gemma4-inputs"
    (window,) = load_model_config(folder).decoder.windows
    assert window.images == whole
    table = WindowTable(window, window.least_pages(BATCH, scheduler_config().shared_step_tokens) + ANCHORS)
    limits = {"rows_per_tile": rows, "whole_images": whole, "window_tables": (table,)}
    with make_group(folder, tp, tiles=pixels, feature_tiles=PLACES, window_pages=[table.num_pages]) as group:
        alone = each_alone(group, config(**limits), asked)
        one, other = TWINS
        assert alone[one] != alone[other]
        yield Subject(group, asked, alone, limits)


def test_a_batch_chunks_and_cached_prefixes_change_no_bit_of_whole_images(subject: Subject) -> None:
    short = {"max_step_tokens": subject.limits["rows_per_tile"] + DECODES}
    for ahead, changes in ((1, {}), (2, short), (2, {"enable_prefix_cache": True})):
        traffic = subject.traffic(ahead=ahead, **changes)
        assert one_by_one(traffic, subject.requests) == subject.alone
        assert_serves(traffic, subject.requests, subject.alone)
        assert traffic.scheduler.features.runs > len(SHAPES)  # in a pool of fewer places
    assert traffic.scheduler.stats().prefix_hit_tokens > 0


def test_no_chunk_has_a_part_of_an_image_whatever_time_there_is(subject: Subject) -> None:
    traffic = subject.traffic(target_itl_s=1e-6)  # far less than a run takes
    assert_serves(traffic, subject.requests, subject.alone)
    assert any(work.begin for plan in traffic.plans for work in plan.tower or [])
    if subject.limits["whole_images"]:
        counts = {placed.count for plan in traffic.plans for placed in plan.placed or []}
        assert counts <= {each.tile.features for request in subject.requests for each in request.images}


def test_retractions_change_no_bit_of_whole_images(subject: Subject) -> None:
    for enable_prefix_cache in (False, True):
        traffic = subject.traffic(num_pages=FEW_PAGES, enable_prefix_cache=enable_prefix_cache)
        assert_serves(traffic, subject.requests, subject.alone)
        assert traffic.scheduler.stats().retractions > 0


def test_draft_tokens_change_no_bit_of_whole_images(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "BLIND", 12)
    traffic = subject.traffic(drafters=played(subject.requests, subject.alone, wrong=7), enable_prefix_cache=True)
    assert one_by_one(traffic, subject.requests) == subject.alone
    assert_serves(traffic, subject.requests, subject.alone)
    counts = traffic.scheduler.drafted
    assert min(counts["played", accepted] for accepted in (True, False)) > 100
