"""Promise: with images and Pixtral's tower, on the same bf16 weights, as close to fp32 as transformers in bf16, within
a tenth."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from tests.support import checkpoints, gguf_pixtral, grid_vision, pixtral
from tests.support.image_parity import ImageTexts, assert_close
from tests.support.parity import Scores
from tests.support.rank_group import RankGroup

SHAPES = ((5, 3), (1, 7), (8, 8), (2, 2), (3, 10))  # rows and columns of features
STARTS = ({5: 0, 120: 2}, {0: 1, 30: 3, 200: 4}, {255: 4})
TEXTS = ImageTexts(STARTS, SHAPES, 100, grid_vision.IMAGE_TOKEN, pixtral.BREAK_TOKEN)


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("case", pixtral.CASES)
def test_with_pixtrals_tower_ranks_are_as_close_to_fp32_as_transformers_in_bf16(
    case: str, tp: int, tmp_path: Path
) -> None:
    model = checkpoints.build(pixtral.CASES[case]())
    folder = pixtral.save(model, tmp_path)
    images = grid_vision.random_images(SHAPES)

    def reference(dtype: torch.dtype) -> Scores:
        of = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

        def logits(tokens: torch.Tensor, numbers: list[int]) -> torch.Tensor:
            inputs = pixtral.inputs_of(of.config, [images[each] for each in numbers])
            found: torch.Tensor = of(tokens[None], **inputs).logits[0]
            return found

        return TEXTS.reference(logits)

    assert_close(TEXTS, folder, tp, pixtral.in_store(images), reference)


@pytest.mark.parametrize("case", pixtral.CASES)
def test_gguf_files_of_text_and_pixtrals_tower_have_the_bits_of_the_folder(case: str, tmp_path: Path) -> None:
    model = checkpoints.build(pixtral.CASES[case]())
    folder, file = pixtral.save(model, tmp_path / "folder"), gguf_pixtral.save(model, tmp_path)
    pixels = pixtral.in_store(grid_vision.random_images(SHAPES))
    found = []
    for path in (folder, file):
        with RankGroup(path, 2, tiles=pixels, **TEXTS.limits) as group:
            found.append(TEXTS.served(group).logprobs)
    np.testing.assert_array_equal(*found)
