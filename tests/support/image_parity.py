"""Texts with images whose scores by ranks are compared with those of transformers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
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

from tests.support.parity import Distance, Scores
from tests.support.rank_group import RankGroup

ALLOWED = 1.1  # of transformers' distance in bf16
POSITIONS = 300
CONTEXT = 320
PAGES = CONTEXT // PAGE_SIZE
CUTS = (3, 7, 31, 125, 204)
GREEDY = SamplingParams(temperature=0.0, logprobs=1)


@dataclass(frozen=True)
class ImageTexts:
    """Random texts with images. `starts` has the images of each text by the position of their first row of features.

    `newline` is the token between two rows of an image's grid; None: there is none.
    """

    starts: Sequence[dict[int, int]]
    shapes: Sequence[tuple[int, int]]  # rows and columns of features of each image
    rows: int  # of features in a place of the pool
    placeholder: int
    newline: int | None = None
    whole: bool = False  # no text is cut within an image

    @property
    def tokens(self) -> list[list[int]]:
        """The texts: tokens below the special ones, and placeholders of images."""
        texts = np.random.default_rng(0).integers(3, 490, (len(self.starts), POSITIONS + 1))
        for text, starts in zip(texts, self.starts, strict=True):
            for start, image in starts.items():
                for first, cols in self._runs(start, image):
                    text[first : first + cols] = self.placeholder
                    if self.newline is not None and first > start:
                        text[first - 1] = self.newline
        found: list[list[int]] = texts.tolist()
        return found

    @property
    def limits(self) -> dict[str, int]:
        """The limits of ranks that take all texts in one step."""
        rows = len(self.starts) * CONTEXT
        pages = {"num_pages": len(self.starts) * PAGES, "context_length": CONTEXT, "feature_tiles": len(self.shapes)}
        return pages | {"max_step_tokens": rows, "max_logit_rows": rows}

    def reference(self, logits_of: Callable[[torch.Tensor, list[int]], torch.Tensor]) -> Scores:
        """The scores by `logits_of`, which takes the tokens of a text but for the last one, and its images."""
        torch.set_num_threads(1)
        logprobs, top = [], []
        for text, starts in zip(self.tokens, self.starts, strict=True):
            tokens = torch.tensor(text)
            with torch.no_grad():
                rows = torch.log_softmax(logits_of(tokens[:-1], list(starts.values())).double(), -1)
            logprobs.append(rows.gather(1, tokens[1:, None])[:, 0].numpy())
            top.append(rows.argmax(-1).numpy())
        return Scores(np.concatenate(logprobs), np.concatenate(top))

    def served(self, group: RankGroup, cuts: Sequence[int] = ()) -> Scores:
        """The scores by ranks, for texts that are cut before some positions."""
        rows, step = [], 0
        for text, starts in zip(self.tokens, self.starts, strict=True):
            for plan in self._steps(text, starts, cuts):
                rows += group.run(StepPlan(step, **plan)).seqs[0].prompt_logprobs
                step += 1
        return _scores_of(rows)

    def together(self, group: RankGroup, step: int) -> Scores:
        """The scores of all texts in one step, the last text first, with images in other places than their own."""
        seqs, tower, placed = [], [], []
        for index, (text, starts) in enumerate(zip(self.tokens[::-1], self.starts[::-1], strict=True)):
            pages, init = list(range(index * PAGES, (index + 1) * PAGES)), self._init(starts)
            seqs.append(SeqPlan(2 - index, 0, text[:-1], pages=pages, init=init, prompt_logprobs=text[1:]))
            for start, image in starts.items():
                place = len(self.shapes) - 1 - image
                tower.append(TowerWork(image, place, 0, 0, *self.shapes[image]))
                placed += self._placed(index, start, image, place, range(POSITIONS))
        found = group.run(StepPlan(step, seqs, tower=tower, placed=placed)).seqs
        return _scores_of([row for seq in found[::-1] for row in seq.prompt_logprobs])

    def _steps(self, text: list[int], starts: dict[int, int], cuts: Sequence[int]) -> Iterator[dict[str, Any]]:
        """The plans of a text. An image is run in the first step that has a row of it."""
        ran = set[int]()
        for begin, end in pairwise([0, *self._outside(starts, cuts), len(text) - 1]):
            placed, tower = [], []
            for start, image in starts.items():
                rows = self._placed(0, start, image, image, range(begin, end))
                placed += rows
                if rows and image not in ran:
                    tower.append(TowerWork(image, image, 0, 0, *self.shapes[image]))
                    ran.add(image)
            first_of = {} if begin else {"pages": list(range(PAGES)), "init": self._init(starts)}
            seq = SeqPlan(0, begin, text[begin:end], prompt_logprobs=text[begin + 1 : end + 1], **first_of)
            yield {"seqs": [seq], "tower": tower, "placed": placed}

    def _outside(self, starts: dict[int, int], cuts: Sequence[int]) -> list[int]:
        """Return the cuts, or the beginning of the image that a cut would go through."""
        if not self.whole:
            return [*cuts]
        found = (
            next((s for s, image in starts.items() if s < cut < sum(self._runs(s, image)[-1])), cut) for cut in cuts
        )
        return [cut for cut in dict.fromkeys(found) if cut]

    def _init(self, starts: dict[int, int]) -> SlotInit:
        grids = [number for start, image in starts.items() for number in (start, *self.shapes[image])]
        return SlotInit(GREEDY, grids=grids)

    def _runs(self, start: int, image: int) -> list[tuple[int, int]]:
        """The positions of an image's rows of features without a token between them: the first, and their number."""
        rows, cols = self.shapes[image]
        if self.newline is None:
            return [(start, rows * cols)]
        return [(start + row * (cols + 1), cols) for row in range(rows)]

    def _placed(self, index: int, start: int, image: int, place: int, positions: range) -> list[PlacedRows]:
        """The rows of an image at some positions."""
        found, row = [], place * self.rows
        for at, count in self._runs(start, image):
            first, last = max(at, positions.start), min(at + count, positions.stop)
            if first < last:
                found.append(PlacedRows(index, first, last - first, row + first - at))
            row += count
        return found


def assert_close(
    texts: ImageTexts, folder: Path, tp: int, tiles: npt.NDArray[np.uint8], reference: Callable[[torch.dtype], Scores]
) -> None:
    """Ranks are as close to fp32 as transformers in bf16, whose scores are `reference`, within a tenth. Texts that are
    cut, and all texts in one step, have the same bits."""
    exact = reference(torch.float32)
    yardstick = Distance.between(reference(torch.bfloat16), exact)
    with RankGroup(folder, tp, tiles=tiles, **texts.limits) as group:
        found, cut, beside = texts.served(group), texts.served(group, CUTS), texts.together(group, 100)
    distance = Distance.between(found, exact)
    assert distance.mean_delta <= ALLOWED * yardstick.mean_delta
    assert distance.disagreements <= ALLOWED * yardstick.disagreements
    np.testing.assert_array_equal(cut.logprobs, found.logprobs)
    np.testing.assert_array_equal(beside.logprobs, found.logprobs)


def _scores_of(rows: Sequence[TokenLogprobs]) -> Scores:
    return Scores(np.array([row.logprob for row in rows]), np.array([row.top_ids[0] for row in rows]))
