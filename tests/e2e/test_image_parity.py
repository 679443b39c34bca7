"""Promise: with images, on the same bf16 weights, as close to fp32 as transformers in bf16, within a tenth."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.workers.interface.protocol import (
    PAGE_SIZE,
    PlacedRows,
    SamplingParams,
    SeqPlan,
    SlotInit,
    StepPlan,
    TokenLogprobs,
    TowerWork,
)

from tests.support import checkpoints, vision
from tests.support.parity import Distance, Scores
from tests.support.rank_group import RankGroup

ALLOWED = 1.1
TEXTS, POSITIONS = 3, 300
# Tiles of each text, by the position of their first row.
STARTS = ({5: 0, 120: 1}, {0: 2, 30: 3, 200: 4}, {290: 0})
CONTEXT = 320
PAGES = CONTEXT // PAGE_SIZE
PLACES = 5
GREEDY = SamplingParams(temperature=0.0, logprobs=1)


def texts_with_tiles(features: int) -> list[list[int]]:
    """Random tokens, with placeholders of tiles from `STARTS` on."""
    texts = np.random.default_rng(0).integers(3, vision.IMAGE_TOKEN, (TEXTS, POSITIONS + 1))
    for text, starts in zip(texts, STARTS, strict=True):
        for start in starts:
            text[start : start + features] = vision.IMAGE_TOKEN
    found: list[list[int]] = texts.tolist()
    return found


def of_transformers(folder: Path, texts: list[list[int]], tiles: vision.Pixels, dtype: torch.dtype) -> Scores:
    torch.set_num_threads(1)
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    logprobs, top = [], []
    for text, starts in zip(texts, STARTS, strict=True):
        tokens = torch.tensor(text)
        values = torch.from_numpy(vision.values_of(tiles[list(starts.values())]))[None]
        with torch.no_grad():
            logits = model(tokens[None, :-1], pixel_values=values).logits[0].double()
        rows = torch.log_softmax(logits, -1)
        logprobs.append(rows.gather(1, tokens[1:, None])[:, 0].numpy())
        top.append(rows.argmax(-1).numpy())
    return Scores(np.concatenate(logprobs), np.concatenate(top))


def steps(text: list[int], starts: dict[int, int], features: int, cuts: list[int]) -> Iterator[dict[str, Any]]:
    """The plans of a text that is cut before some positions. A tile is run in the first step that has a row of it."""
    ran = set[int]()
    for begin, end in pairwise([0, *cuts, len(text) - 1]):
        placed, tower = [], []
        for start, tile in starts.items():
            first, last = max(begin, start), min(end, start + features)
            if first < last:
                placed.append(PlacedRows(0, first, last - first, tile * features + first - start))
                if tile not in ran:
                    tower.append(TowerWork(tile, tile))
                    ran.add(tile)
        first_of = {} if begin else {"pages": list(range(PAGES)), "init": SlotInit(GREEDY)}
        seq = SeqPlan(0, begin, text[begin:end], prompt_logprobs=text[begin + 1 : end + 1], **first_of)
        yield {"seqs": [seq], "tower": tower, "placed": placed}


def served(group: RankGroup, texts: list[list[int]], features: int, cuts: list[int]) -> Scores:
    """The scores by ranks, for texts that are cut before some positions."""
    rows, step = [], 0
    for text, starts in zip(texts, STARTS, strict=True):
        for plan in steps(text, starts, features, cuts):
            rows += group.run(StepPlan(step, **plan)).seqs[0].prompt_logprobs
            step += 1
    return scores_of(rows)


def together(group: RankGroup, texts: list[list[int]], features: int, step: int) -> Scores:
    """The scores of all texts in one step, the last text first, with tiles in other places than their own."""
    seqs, tower, placed = [], [], []
    for index, (text, starts) in enumerate(zip(texts[::-1], STARTS[::-1], strict=True)):
        pages = list(range(index * PAGES, (index + 1) * PAGES))
        seqs.append(SeqPlan(2 - index, 0, text[:-1], pages=pages, init=SlotInit(GREEDY), prompt_logprobs=text[1:]))
        for start, tile in starts.items():
            place = PLACES - 1 - tile
            tower.append(TowerWork(tile, place))
            placed.append(PlacedRows(index, start, min(features, POSITIONS - start), place * features))
    found = group.run(StepPlan(step, seqs, tower=tower, placed=placed)).seqs
    return scores_of([row for seq in found[::-1] for row in seq.prompt_logprobs])


def scores_of(rows: list[TokenLogprobs]) -> Scores:
    return Scores(np.array([row.logprob for row in rows]), np.array([row.top_ids[0] for row in rows]))


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("case", vision.CASES)
def test_with_images_ranks_are_as_close_to_fp32_as_transformers_in_bf16(case: str, tp: int, tmp_path: Path) -> None:
    model = checkpoints.build(vision.CASES[case]())
    folder, features = vision.save(model, tmp_path), vision.features_of(model.config)
    tiles, texts = vision.random_tiles(model.config, PLACES), texts_with_tiles(features)
    reference = of_transformers(folder, texts, tiles, torch.float32)
    yardstick = Distance.between(of_transformers(folder, texts, tiles, torch.bfloat16), reference)
    limits = {"num_pages": TEXTS * PAGES, "context_length": CONTEXT, "feature_tiles": PLACES}
    rows = {"max_step_tokens": TEXTS * CONTEXT, "max_logit_rows": TEXTS * CONTEXT}
    with RankGroup(folder, tp, tiles=tiles, **limits, **rows) as group:
        found = served(group, texts, features, [])
        cut = served(group, texts, features, [3, 7, 31, 125, 204])
        beside = together(group, texts, features, 100)
    distance = Distance.between(found, reference)
    assert distance.mean_delta <= ALLOWED * yardstick.mean_delta
    assert distance.disagreements <= ALLOWED * yardstick.disagreements
    np.testing.assert_array_equal(cut.logprobs, found.logprobs)
    np.testing.assert_array_equal(beside.logprobs, found.logprobs)
