"""Promise: with images of any size, on the same bf16 weights, as close to fp32 as transformers in bf16, within a
tenth."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from tests.support import checkpoints, gguf_grid_vision, grid_vision
from tests.support.image_parity import ImageTexts, assert_close
from tests.support.parity import Scores
from tests.support.rank_group import RankGroup

SHAPES = ((5, 3), (1, 7), (8, 8), (2, 2), (3, 10))  # rows and columns of features
# Images of each text, by the position of their first row. They follow each other with a text between, as in templates.
STARTS = ({5: 0, 120: 2}, {0: 1, 30: 3, 200: 4}, {255: 4})
TEXTS = ImageTexts(STARTS, SHAPES, grid_vision.MOST // grid_vision.SQUARE**2, grid_vision.IMAGE_TOKEN)


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("case", grid_vision.CASES)
def test_with_images_of_any_size_ranks_are_as_close_to_fp32_as_transformers_in_bf16(
    case: str, tp: int, tmp_path: Path
) -> None:
    model = checkpoints.build(grid_vision.CASES[case]())
    folder, form = grid_vision.save(model, tmp_path), grid_vision.form_of(model.config)
    images = grid_vision.random_images(SHAPES)

    def reference(dtype: torch.dtype) -> Scores:
        of = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

        def logits(tokens: torch.Tensor, numbers: list[int]) -> torch.Tensor:
            inputs = grid_vision.inputs_of(form, [images[each] for each in numbers], tokens)
            found: torch.Tensor = of(tokens[None], **inputs).logits[0]
            return found

        return TEXTS.reference(logits)

    assert_close(TEXTS, folder, tp, grid_vision.in_store(images), reference)


@pytest.mark.parametrize("case", grid_vision.CASES)
def test_gguf_files_of_text_and_tower_have_the_bits_of_the_folder(case: str, tmp_path: Path) -> None:
    model = checkpoints.build(grid_vision.CASES[case]())
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):  # files hold its exponential, which is exact for 0
            parameter.data.zero_()
    folder, file = grid_vision.save(model, tmp_path / "folder"), gguf_grid_vision.save(model, tmp_path)
    pixels = grid_vision.in_store(grid_vision.random_images(SHAPES))
    found = []
    for path in (folder, file):
        with RankGroup(path, 2, tiles=pixels, **TEXTS.limits) as group:
            found.append(TEXTS.served(group).logprobs)
    np.testing.assert_array_equal(*found)
