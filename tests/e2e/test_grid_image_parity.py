"""Promise: with images of any size, on the same bf16 weights, as close to fp32 as transformers in bf16, within a
tenth."""

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

from tests.support import checkpoints, gguf_grid_vision, grid_vision
from tests.support.parity import Distance, Scores
from tests.support.rank_group import RankGroup

ALLOWED = 1.1
POSITIONS = 300
SHAPES = ((5, 3), (1, 7), (8, 8), (2, 2), (3, 10))  # rows and columns of features
# Images of each text, by the position of their first row. They follow each other with a text between, as in templates.
STARTS = ({5: 0, 120: 2}, {0: 1, 30: 3, 200: 4}, {255: 4})
ROWS = grid_vision.MOST // grid_vision.SQUARE**2  # of a place
CONTEXT = 320
PAGES = CONTEXT // PAGE_SIZE
GREEDY = SamplingParams(temperature=0.0, logprobs=1)


def size(image: int) -> int:
    rows, cols = SHAPES[image]
    return rows * cols


def grids(starts: dict[int, int]) -> list[int]:
    return [number for start, image in starts.items() for number in (start, *SHAPES[image])]


def texts_with_images() -> list[list[int]]:
    """Random tokens, with placeholders of images from `STARTS` on."""
    texts = np.random.default_rng(0).integers(3, 490, (len(STARTS), POSITIONS + 1))
    for text, starts in zip(texts, STARTS, strict=True):
        for start, image in starts.items():
            text[start : start + size(image)] = grid_vision.IMAGE_TOKEN
    found: list[list[int]] = texts.tolist()
    return found


def of_transformers(folder: Path, texts: list[list[int]], dtype: torch.dtype) -> Scores:
    torch.set_num_threads(1)
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    images = grid_vision.random_images(SHAPES)
    logprobs, top = [], []
    for text, starts in zip(texts, STARTS, strict=True):
        tokens = torch.tensor(text)
        inputs = grid_vision.inputs_of([images[each] for each in starts.values()], tokens[:-1])
        with torch.no_grad():
            logits = model(tokens[None, :-1], **inputs).logits[0].double()
        rows = torch.log_softmax(logits, -1)
        logprobs.append(rows.gather(1, tokens[1:, None])[:, 0].numpy())
        top.append(rows.argmax(-1).numpy())
    return Scores(np.concatenate(logprobs), np.concatenate(top))


def steps(text: list[int], starts: dict[int, int], cuts: list[int]) -> Iterator[dict[str, Any]]:
    """The plans of a text that is cut before some positions. An image is run in the first step that has a row of it."""
    ran = set[int]()
    for begin, end in pairwise([0, *cuts, len(text) - 1]):
        placed, tower = [], []
        for start, image in starts.items():
            first, last = max(begin, start), min(end, start + size(image))
            if first < last:
                placed.append(PlacedRows(0, first, last - first, image * ROWS + first - start))
                if image not in ran:
                    tower.append(TowerWork(image, image, 0, 0, *SHAPES[image]))
                    ran.add(image)
        init = SlotInit(GREEDY, grids=grids(starts))
        first_of = {} if begin else {"pages": list(range(PAGES)), "init": init}
        seq = SeqPlan(0, begin, text[begin:end], prompt_logprobs=text[begin + 1 : end + 1], **first_of)
        yield {"seqs": [seq], "tower": tower, "placed": placed}


def served(group: RankGroup, texts: list[list[int]], cuts: list[int]) -> Scores:
    """The scores by ranks, for texts that are cut before some positions."""
    rows, step = [], 0
    for text, starts in zip(texts, STARTS, strict=True):
        for plan in steps(text, starts, cuts):
            rows += group.run(StepPlan(step, **plan)).seqs[0].prompt_logprobs
            step += 1
    return scores_of(rows)


def together(group: RankGroup, texts: list[list[int]], step: int) -> Scores:
    """The scores of all texts in one step, the last text first, with images in other places than their own."""
    seqs, tower, placed = [], [], []
    for index, (text, starts) in enumerate(zip(texts[::-1], STARTS[::-1], strict=True)):
        pages, init = list(range(index * PAGES, (index + 1) * PAGES)), SlotInit(GREEDY, grids=grids(starts))
        seqs.append(SeqPlan(2 - index, 0, text[:-1], pages=pages, init=init, prompt_logprobs=text[1:]))
        for start, image in starts.items():
            place = len(SHAPES) - 1 - image
            tower.append(TowerWork(image, place, 0, 0, *SHAPES[image]))
            placed.append(PlacedRows(index, start, min(size(image), POSITIONS - start), place * ROWS))
    found = group.run(StepPlan(step, seqs, tower=tower, placed=placed)).seqs
    return scores_of([row for seq in found[::-1] for row in seq.prompt_logprobs])


def scores_of(rows: list[TokenLogprobs]) -> Scores:
    return Scores(np.array([row.logprob for row in rows]), np.array([row.top_ids[0] for row in rows]))


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("case", grid_vision.CASES)
def test_with_images_of_any_size_ranks_are_as_close_to_fp32_as_transformers_in_bf16(
    case: str, tp: int, tmp_path: Path
) -> None:
    folder = grid_vision.save(checkpoints.build(grid_vision.CASES[case]()), tmp_path)
    texts, pixels = texts_with_images(), grid_vision.in_store(grid_vision.random_images(SHAPES))
    reference = of_transformers(folder, texts, torch.float32)
    yardstick = Distance.between(of_transformers(folder, texts, torch.bfloat16), reference)
    limits = {"num_pages": len(texts) * PAGES, "context_length": CONTEXT, "feature_tiles": len(SHAPES)}
    rows = {"max_step_tokens": len(texts) * CONTEXT, "max_logit_rows": len(texts) * CONTEXT}
    with RankGroup(folder, tp, tiles=pixels, **limits, **rows) as group:
        found = served(group, texts, [])
        cut = served(group, texts, [3, 7, 31, 125, 204])
        beside = together(group, texts, 100)
    distance = Distance.between(found, reference)
    assert distance.mean_delta <= ALLOWED * yardstick.mean_delta
    assert distance.disagreements <= ALLOWED * yardstick.disagreements
    np.testing.assert_array_equal(cut.logprobs, found.logprobs)
    np.testing.assert_array_equal(beside.logprobs, found.logprobs)


@pytest.mark.parametrize("case", grid_vision.CASES)
def test_gguf_files_of_text_and_tower_have_the_bits_of_the_folder(case: str, tmp_path: Path) -> None:
    model = checkpoints.build(grid_vision.CASES[case]())
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):  # files hold its exponential, which is exact for 0
            parameter.data.zero_()
    folder, file = grid_vision.save(model, tmp_path / "folder"), gguf_grid_vision.save(model, tmp_path)
    texts, pixels = texts_with_images(), grid_vision.in_store(grid_vision.random_images(SHAPES))
    limits = {"num_pages": PAGES, "context_length": CONTEXT, "feature_tiles": len(SHAPES), "tiles": pixels}
    rows = {"max_step_tokens": CONTEXT, "max_logit_rows": CONTEXT}
    found = []
    for path in (folder, file):
        with RankGroup(path, 2, **limits, **rows) as group:
            found.append(served(group, texts, []).logprobs)
    np.testing.assert_array_equal(*found)
