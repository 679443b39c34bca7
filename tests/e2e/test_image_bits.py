"""Images change no bit in any company: tokens and log-probabilities are compared exactly."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numaserve.server.scheduler.images import PlacedTile, Tile
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.speculation import speculation
from numaserve.server.speculation.drafter import Drafters
from numaserve.server.speculation.server_drafters import ServerDrafters
from numaserve.workers.interface.protocol import SamplingParams, StepPlan, TowerWork

from tests.support import checkpoints, gguf_vision, llama4_vision, vision
from tests.support.drafters import NoDrafters
from tests.support.played_drafts import played
from tests.support.rank_group import RankGroup
from tests.support.same_bits import GREEDY, SAMPLED, make_group, scheduler_config
from tests.support.traffic import Answer, Request, Traffic, assert_serves, each_alone, one_by_one

TILES, PLACES = 5, 2  # of the image store, and of the feature pool: features make way, and are made again
FEW_PAGES = 11  # the longest request needs 10
# Each string is a tile, by its number. Each number is a text of as many tokens. Tiles begin at the first position, lie
# over edges of pages (32) and chunks (64), and follow each other.
PROMPTS: list[tuple[int | str, ...]] = [
    (5, "0", 12),
    (28, "1", 40),
    (60, "2", 40, "3", 7),
    ("0", "1", 1),
    (1, "4", 200, "0", 90),
    (254, "2", 30),
    (28, "3", 40),
    (70,),
    (20, "4", "4", 60),
]
SHORT = {"num_pages": FEW_PAGES, "enable_prefix_cache": True}
TWINS = 1, 6  # prompts with the same tokens and other images
LONG = (0, 1, 2, 3, 6, 7)  # requests that grow by two pages or three: they make others give way
# The output may have the token that stands for an image in prompts. There it is a token like all others.
PLACEHOLDERS = SamplingParams(temperature=0.0, logprobs=5, logit_bias={vision.IMAGE_TOKEN: 2.0})


@dataclass
class Subject:
    """A group of workers, requests, and the answers to each of them alone, in one chunk where it fits a step."""

    group: RankGroup
    rows: int  # features of a tile
    requests: list[Request]
    alone: list[Answer]

    def traffic(self, *, ahead: int = 2, drafters: Drafters | None = None, **limits: object) -> Traffic:
        """A scheduler before the group, with these changes of its limits."""
        return Traffic(self.group, config(self.rows, **limits), ahead=ahead, drafters=drafters)


def config(rows: int, **changes: object) -> SchedulerConfig:
    return scheduler_config(rows_per_tile=rows, placeholder=vision.IMAGE_TOKEN, feature_tiles=PLACES, **changes)


def requests_of(rows: int) -> list[Request]:
    rng = np.random.default_rng(0)
    tiles = [Tile(number, sha256(bytes([number])).digest(), 1, rows) for number in range(TILES)]
    requests: list[Request] = []
    for index, parts in enumerate(PROMPTS):
        prompt: list[int] = []
        images: list[PlacedTile] = []
        for part in parts:
            if isinstance(part, str):
                images.append(PlacedTile(len(prompt), tiles[int(part)]))
                prompt += [vision.IMAGE_TOKEN] * rows
            else:
                prompt += rng.integers(3, vision.IMAGE_TOKEN, part).tolist()
        sampling = (GREEDY, PLACEHOLDERS, SAMPLED[index // 3])[index % 3]
        requests.append(Request(prompt, sampling, 66 if index in LONG else 6, images=tuple(images)))
    one, other = TWINS
    requests[other] = replace(requests[one], images=requests[other].images)
    return requests


@pytest.fixture(scope="module", params=[(1, "smolvlm"), (2, "smolvlm"), (2, "idefics3"), (3, "llama4")], ids=str)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Workers with the language model alone as a draft model, which plans may leave out."""
    tp, name = request.param
    model = checkpoints.build((vision.CASES | llama4_vision.CASES)[name]())
    folder, draft = (tmp_path_factory.mktemp(each) for each in (name, "draft"))
    if name == "llama4":
        llama4_vision.save(model, folder)
        text, rows = model.language_model, llama4_vision.FEATURES
    else:
        vision.save(model, folder)
        text, rows = vision.text_model(model), vision.features_of(model.config)
    checkpoints.save(text, draft)
    requests, tiles = requests_of(rows), vision.random_tiles(model.config, TILES)
    with make_group(folder, tp, tiles=tiles, feature_tiles=PLACES, draft_model=draft) as group:
        alone = each_alone(group, config(rows), requests)
        one, other = TWINS
        assert alone[one] != alone[other]
        assert any(vision.IMAGE_TOKEN in answer.tokens for answer in alone)
        yield Subject(group, rows, requests, alone)


def test_a_batch_chunks_and_cached_prefixes_change_no_bit_of_images(subject: Subject) -> None:
    for ahead, changes in ((1, {}), (2, {"max_step_tokens": 64}), (2, {"enable_prefix_cache": True})):
        traffic = subject.traffic(ahead=ahead, **changes)
        assert one_by_one(traffic, subject.requests) == subject.alone
        assert_serves(traffic, subject.requests, subject.alone)
        assert traffic.scheduler.features.runs > TILES  # in a pool of fewer places
    assert traffic.scheduler.stats().prefix_hit_tokens > 0


def test_runs_of_the_tower_in_parts_change_no_bit(subject: Subject) -> None:
    traffic = subject.traffic(target_itl_s=1e-6)  # far less than a run takes
    assert_serves(traffic, subject.requests, subject.alone)
    assert any(work.begin for plan in traffic.plans for work in plan.tower or [])


def test_retractions_change_no_bit_of_images(subject: Subject) -> None:
    for enable_prefix_cache in (False, True):
        traffic = subject.traffic(num_pages=FEW_PAGES, enable_prefix_cache=enable_prefix_cache)
        assert_serves(traffic, subject.requests, subject.alone)
        assert traffic.scheduler.stats().retractions > 0


def test_draft_tokens_of_the_front_end_change_no_bit_of_images(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "BLIND", 12)
    counts = Counter[tuple[str, bool]]()
    for drafters in (played(subject.requests, subject.alone, wrong=7), ServerDrafters(["suffix"])):
        traffic = subject.traffic(drafters=drafters, **SHORT)
        assert_drafts(traffic, subject)
        assert vision.IMAGE_TOKEN not in drafted(traffic)
        counts += traffic.scheduler.drafted
    assert min(counts["played", True], counts["played", False], counts["suffix", True]) > 100


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_draft_model_that_sees_no_image_changes_no_bit(subject: Subject, ahead: int) -> None:
    traffic = subject.traffic(ahead=ahead, drafters=NoDrafters(), worker_drafter="draft_model", **SHORT)
    assert_drafts(traffic, subject)
    counts = traffic.scheduler.drafted
    assert min(counts["draft_model", accepted] for accepted in (True, False)) > 100


def drafted(traffic: Traffic) -> set[int]:
    """The draft tokens of all plans."""
    counted = ((seq, count) for plan in traffic.plans for seq, count in zip(plan.seqs, plan.drafts or [], strict=False))
    return {token for seq, count in counted for token in seq.tokens[len(seq.tokens) - count :]}


def assert_drafts(traffic: Traffic, subject: Subject) -> None:
    """Serve each request alone, and all together, while requests are retracted."""
    assert one_by_one(traffic, subject.requests) == subject.alone
    assert_serves(traffic, subject.requests, subject.alone)
    assert traffic.scheduler.stats().retractions > 0


def test_workers_load_the_tower_that_an_option_names(tmp_path: Path) -> None:
    model = checkpoints.build(vision.CASES["smolvlm"]())
    text, tower = gguf_vision.save_text(model, tmp_path / "text.gguf"), tmp_path / "towers" / "f16.gguf"
    tower.parent.mkdir()
    gguf_vision.save_tower(model, tower)
    tiles = vision.random_tiles(model.config, 1)
    with RankGroup(text, tiles=tiles, feature_tiles=PLACES, mmproj=str(tower)) as group:
        assert group.run(StepPlan(1, [], tower=[TowerWork(0, 0)])).tower_ns > 0
