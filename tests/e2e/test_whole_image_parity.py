"""Promise: with images whose tokens see each other in some layers, or whose rows have inputs of their own in each
layer, as close to fp32 as transformers in bf16, within a tenth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from tests.support import checkpoints, gemma4_vision, gemma_vision, gguf_gemma_vision, vision
from tests.support.image_parity import ImageTexts, assert_close
from tests.support.parity import Scores
from tests.support.rank_group import RankGroup

IMAGES = 5
# Images of each text, by the position of their first row: at its beginning, over edges of windows, pages and blocks.
TILE_STARTS = ({5: 0, 120: 1}, {0: 2, 40: 3, 245: 4}, {270: 0})
SHAPES = ((5, 3), (1, 7), (8, 8), (2, 2), (3, 10))  # rows and columns of features
GRID_STARTS = ({5: 0, 120: 2}, {0: 1, 30: 3, 200: 2}, {255: 4})


def reference(
    texts: ImageTexts, folder: Path, inputs_of: Callable[[list[int], torch.Tensor], Any]
) -> Callable[[torch.dtype], Scores]:
    def scores(dtype: torch.dtype) -> Scores:
        of = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

        def logits(tokens: torch.Tensor, numbers: list[int]) -> torch.Tensor:
            return gemma4_vision.logits_of(of, tokens[None], inputs_of(numbers, tokens))

        return texts.reference(logits)

    return scores


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_with_images_of_gemma_3_ranks_are_as_close_to_fp32_as_transformers_in_bf16(tp: int, tmp_path: Path) -> None:
    model = checkpoints.build(gemma_vision.CASES["gemma3"]())
    folder, rows = gemma_vision.save(model, tmp_path), gemma_vision.features_of(model.config)
    images = vision.random_tiles(model.config, IMAGES)
    texts = ImageTexts(TILE_STARTS, [(1, rows)] * IMAGES, rows, gemma_vision.IMAGE_TOKEN, whole=True)
    expected = reference(texts, folder, lambda chosen, tokens: gemma_vision.inputs_of(images[chosen], tokens))
    assert_close(texts, folder, tp, images, expected)


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("case", gemma4_vision.CASES)
def test_with_images_of_gemma_4_ranks_are_as_close_to_fp32_as_transformers_in_bf16(
    case: str, tp: int, tmp_path: Path
) -> None:
    model = gemma4_vision.build(case)
    folder, factor = gemma4_vision.save(model, tmp_path), gemma4_vision.factor_of(model.config)
    images = gemma4_vision.random_images(SHAPES, factor)
    texts = ImageTexts(GRID_STARTS, SHAPES, gemma4_vision.ROWS, gemma4_vision.IMAGE_TOKEN, whole=True)

    def inputs_of(chosen: list[int], tokens: torch.Tensor) -> Any:
        return gemma4_vision.inputs_of(model.config, [images[each] for each in chosen], tokens)

    assert_close(texts, folder, tp, gemma4_vision.in_store(images, factor), reference(texts, folder, inputs_of))


@pytest.mark.parametrize("case", [*gemma_vision.CASES, *gemma4_vision.CASES])
def test_gguf_files_of_gemma_and_its_tower_have_the_bits_of_the_folder(case: str, tmp_path: Path) -> None:
    if case in gemma_vision.CASES:
        model = checkpoints.build(gemma_vision.CASES[case]())
        folder, rows = gemma_vision.save(model, tmp_path / "folder"), gemma_vision.features_of(model.config)
        pixels = vision.random_tiles(model.config, IMAGES)
        texts = ImageTexts(TILE_STARTS, [(1, rows)] * IMAGES, rows, gemma_vision.IMAGE_TOKEN, whole=True)
    else:
        model = gemma4_vision.build(case)
        folder, factor = gemma4_vision.save(model, tmp_path / "folder"), gemma4_vision.factor_of(model.config)
        pixels = gemma4_vision.in_store(gemma4_vision.random_images(SHAPES, factor), factor)
        texts = ImageTexts(GRID_STARTS, SHAPES, gemma4_vision.ROWS, gemma4_vision.IMAGE_TOKEN, whole=True)
    file = gguf_gemma_vision.save(model, tmp_path)
    found = []
    for path in (folder, file):
        with RankGroup(path, 2, tiles=pixels, **texts.limits) as group:
            found.append(texts.served(group).logprobs)
    np.testing.assert_array_equal(*found)
