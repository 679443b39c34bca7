"""Promise: with images and Llama 4's tower, on the same bf16 weights, as close to fp32 as transformers in bf16, within
a tenth."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from tests.support import checkpoints, gguf_llama4_vision, llama4_vision, vision
from tests.support.image_parity import ImageTexts, assert_close
from tests.support.parity import Scores
from tests.support.rank_group import RankGroup

TILES = 5
# Tiles of each text, by the position of their first row.
STARTS = ({5: 0, 120: 1}, {0: 2, 30: 3, 200: 4}, {290: 0})


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_with_llama_4s_tower_ranks_are_as_close_to_fp32_as_transformers_in_bf16(tp: int, tmp_path: Path) -> None:
    model = checkpoints.build(llama4_vision.config())
    folder, features = llama4_vision.save(model, tmp_path), llama4_vision.FEATURES
    tiles = vision.random_tiles(model.config, TILES)
    texts = ImageTexts(STARTS, [(1, features)] * TILES, features, llama4_vision.IMAGE_TOKEN)

    def reference(dtype: torch.dtype) -> Scores:
        of = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

        def logits(tokens: torch.Tensor, images: list[int]) -> torch.Tensor:
            return llama4_vision.logits_of(of, tokens, llama4_vision.values_of(tiles[images]).to(dtype))

        return texts.reference(logits)

    assert_close(texts, folder, tp, tiles, reference)


def test_gguf_files_of_text_and_llama_4s_tower_have_the_bits_of_the_folder(tmp_path: Path) -> None:
    model = checkpoints.build(llama4_vision.config(in_gguf=True))
    folder, file = llama4_vision.save(model, tmp_path / "folder"), gguf_llama4_vision.save(model, tmp_path)
    tiles, features = vision.random_tiles(model.config, TILES), llama4_vision.FEATURES
    texts = ImageTexts(STARTS, [(1, features)] * TILES, features, llama4_vision.IMAGE_TOKEN)
    found = []
    for path in (folder, file):
        with RankGroup(path, 2, tiles=tiles, **texts.limits) as group:
            found.append(texts.served(group).logprobs)
    np.testing.assert_array_equal(*found)
