"""GGUF models of Gemma 3 and 4 whose vision tower is in a file next to them."""

from pathlib import Path

import numpy as np
import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.load import load_model_config, open_model, read_config
from numaserve.workers.weights.checkpoint import check_checkpoint

from tests.support import checkpoints, gemma4_vision, gemma_vision, gguf_gemma_vision
from tests.support.loaded import load_part

CASES = (*gemma_vision.CASES, *gemma4_vision.CASES)


def build(case: str) -> hf.PreTrainedModel:
    if case in gemma4_vision.CASES:
        return gemma4_vision.build(case)
    return checkpoints.build(gemma_vision.CASES[case]())


def save(model: hf.PreTrainedModel, folder: Path) -> Path:
    module = gemma4_vision if gguf_gemma_vision.is_gemma4(model) else gemma_vision
    path: Path = module.save(model, folder)
    return path


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_the_model_of_the_folder(case: str, tmp_path: Path, team: Team) -> None:
    model = build(case)
    folder, file = save(model, tmp_path / "folder"), gguf_gemma_vision.save(model, tmp_path)
    whole, found = load_model_config(folder), load_model_config(file)
    assert (found.family, found.notes) == (whole.family, ())
    assert found.images is not None
    assert whole.images is not None
    assert found.images.sizes == whole.images.sizes
    assert (found.images.frame, found.images.whole) == (whole.images.frame, whole.images.whole)
    for rank in (0, 1):
        np.testing.assert_equal(*(load_part(path, team, [2, 1], rank).tower_weights() for path in (file, folder)))


@pytest.mark.parametrize("case", CASES)
def test_without_its_tower_a_file_is_the_text_model(case: str, tmp_path: Path) -> None:
    path = gguf_gemma_vision.save(build(case), tmp_path)
    (tmp_path / "mmproj-model.gguf").unlink()
    files = open_model(path)
    config = read_config(files)
    check_checkpoint(files, config)
    assert (config.images, config.decoder.tower) == (None, None)


def test_a_tower_without_patches_for_its_squares_is_refused(tmp_path: Path) -> None:
    path = gguf_gemma_vision.save(build("gemma3"), tmp_path, clip__vision__projector__scale_factor=3)
    with pytest.raises(OperatorError, match="mm_tokens_per_image=9 is not supported"):
        load_model_config(path)
