"""Promise: with images, on the same bf16 weights, as close to fp32 as transformers in bf16, within a tenth."""

from pathlib import Path

import pytest
import torch
import transformers as hf

from tests.support import checkpoints, vision
from tests.support.image_parity import ImageTexts, assert_close
from tests.support.parity import Scores

TILES = 5
# Tiles of each text, by the position of their first row.
STARTS = ({5: 0, 120: 1}, {0: 2, 30: 3, 200: 4}, {290: 0})


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("case", vision.CASES)
def test_with_images_ranks_are_as_close_to_fp32_as_transformers_in_bf16(case: str, tp: int, tmp_path: Path) -> None:
    model = checkpoints.build(vision.CASES[case]())
    folder, features = vision.save(model, tmp_path), vision.features_of(model.config)
    tiles = vision.random_tiles(model.config, TILES)
    texts = ImageTexts(STARTS, [(1, features)] * TILES, features, vision.IMAGE_TOKEN)

    def reference(dtype: torch.dtype) -> Scores:
        of = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

        def logits(tokens: torch.Tensor, images: list[int]) -> torch.Tensor:
            values = torch.from_numpy(vision.values_of(tiles[images]))[None]
            found: torch.Tensor = of(tokens[None], pixel_values=values).logits[0]
            return found

        return texts.reference(logits)

    assert_close(texts, folder, tp, tiles, reference)
