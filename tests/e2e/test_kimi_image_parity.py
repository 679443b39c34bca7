"""Promise: with images and Kimi K2.5's tower, on the same bf16 weights, as close to fp32 as transformers in bf16,
within a tenth."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from tests.support import checkpoints, gguf_kimi_vision, grid_vision, kimi_vision
from tests.support.image_parity import ImageTexts, assert_close
from tests.support.parity import Scores
from tests.support.rank_group import RankGroup

SHAPES = ((5, 3), (1, 7), (8, 8), (2, 2), (3, 10))  # rows and columns of features
STARTS = ({5: 0, 120: 2}, {0: 1, 30: 3, 200: 4}, {255: 4})
TEXTS = ImageTexts(STARTS, SHAPES, kimi_vision.MOST, grid_vision.IMAGE_TOKEN)


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_with_kimis_tower_ranks_are_as_close_to_fp32_as_transformers_in_bf16(tp: int, tmp_path: Path) -> None:
    folder = kimi_vision.save(checkpoints.build(kimi_vision.config()), tmp_path)
    images = grid_vision.random_images(SHAPES)

    def reference(dtype: torch.dtype) -> Scores:
        of = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

        def logits(tokens: torch.Tensor, numbers: list[int]) -> torch.Tensor:
            given = kimi_vision.inputs_of([images[each] for each in numbers], dtype)
            found: torch.Tensor = of(tokens[None], **given).logits[0]
            return found

        return TEXTS.reference(logits)

    assert_close(TEXTS, folder, tp, kimi_vision.in_store(images), reference)


def test_gguf_files_of_text_and_kimis_tower_have_the_bits_of_the_folder(tmp_path: Path) -> None:
    model = checkpoints.build(kimi_vision.config())
    folder, file = kimi_vision.save(model, tmp_path / "folder"), gguf_kimi_vision.save(model, tmp_path)
    pixels = kimi_vision.in_store(grid_vision.random_images(SHAPES))
    found = []
    for path in (folder, file):
        with RankGroup(path, 2, tiles=pixels, **TEXTS.limits) as group:
            found.append(TEXTS.served(group).logprobs)
    np.testing.assert_array_equal(*found)
