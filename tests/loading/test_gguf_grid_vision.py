"""GGUF models whose vision tower, in a file next to them, takes images of any size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.images import Grid
from numaserve.workers.layers.grid_tower import GridTower
from numaserve.workers.models.load import load_model_config, open_model, read_config, read_whole_config
from numaserve.workers.weights.checkpoint import check_checkpoint

from tests.support import checkpoints, gguf_grid_vision, grid_vision
from tests.support.gguf_grid_vision import FIRST, SECOND
from tests.support.loaded import load_part


def save(case: str, folder: Path, **changes: Any) -> Path:
    return gguf_grid_vision.save(checkpoints.build(grid_vision.CASES[case]()), folder, **changes)


def tower_of(path: Path) -> GridTower:
    tower = load_model_config(path).decoder.tower
    assert isinstance(tower, GridTower)
    return tower


@pytest.mark.parametrize("case", grid_vision.CASES)
def test_the_files_describe_the_model_of_the_folder(case: str, tmp_path: Path) -> None:
    folder = grid_vision.save(checkpoints.build(grid_vision.CASES[case]()), tmp_path / "folder")
    whole, found = load_model_config(folder), load_model_config(save(case, tmp_path))
    assert (found.family, found.images, found.notes) == (whole.family, whole.images, ())
    assert found.decoder.tower == tower_of(folder)


@pytest.mark.spread("case")
@pytest.mark.parametrize("case", ["qwen3_vl", "paddleocr_vl"])
@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
def test_all_weights_of_a_tower_have_the_bits_of_the_folder(kind: str, case: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(grid_vision.CASES[case]())
    for name, parameter in model.model.named_parameters():
        if not name.startswith("language_model."):  # values that fp16 holds too
            parameter.data.copy_((parameter.data * 64).round() / 64)
    folder = grid_vision.save(model, tmp_path / "folder")
    file = gguf_grid_vision.save_text(model, tmp_path / "model.gguf")
    gguf_grid_vision.save_tower(model, tmp_path / "mmproj.gguf", kind)
    for rank in (0, 1):
        np.testing.assert_equal(*(load_part(path, team, [2, 1], rank).tower_weights() for path in (file, folder)))


@pytest.mark.parametrize(
    ("case", "family"), [("qwen3_vl", "qwen3"), ("qwen3_vl_moe", "qwen3_moe"), ("paddleocr_vl", "paddleocr_vl")]
)
def test_without_its_tower_a_file_is_the_text_model(case: str, family: str, tmp_path: Path) -> None:
    path = save(case, tmp_path)
    (tmp_path / "mmproj-model.gguf").unlink()
    files = open_model(path)
    config = read_config(files)
    check_checkpoint(files, config)
    assert (config.family, config.images, config.decoder.tower) == (family, None, None)


def test_a_text_model_that_takes_no_tower_of_that_type_leaves_it_alone(tmp_path: Path) -> None:
    model = checkpoints.build(grid_vision.CASES["qwen3_vl"]())
    gguf_grid_vision.save_tower(model, tmp_path / "mmproj.gguf")
    text = checkpoints.build(hf.Qwen3Config(**checkpoints.sizes(96, 3, 1, 160)))  # as wide as the tower's features
    path = checkpoints.save_gguf(text, tmp_path / "model.gguf", "BF16")
    assert load_model_config(path).images is None
    with pytest.raises(OperatorError, match="supported are none for the architecture of this model"):
        open_model(path, str(tmp_path / "mmproj.gguf"))


def test_files_without_bounds_have_those_of_published_models(tmp_path: Path) -> None:
    without = {"clip__vision__image_min_pixels": None, "clip__vision__image_max_pixels": None}
    images = read_whole_config(open_model(save("qwen3_vl", tmp_path, **without))).images
    assert images is not None
    assert images.sizes == Grid(square=grid_vision.SQUARE, least_pixels=65536, pixels=16777216)


@pytest.mark.parametrize(
    ("case", "changes", "says"),
    [
        ("qwen3_vl", {"is_deepstack_layers": [True] * 4}, "the tower has 4 deep features, and the text model takes 2"),
        ("qwen3_5", {"is_deepstack_layers": [True] * 2}, "the tower has 2 deep features, and the text model takes 0"),
        ("qwen3_vl", {"spatial_merge_size": None}, "spatial_merge_size is missing"),
        ("qwen3_vl", {"image_size": None}, "clip.vision.image_size is missing"),
    ],
)
def test_a_tower_that_does_not_fit_is_refused(case: str, changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = save(case, tmp_path, **{f"clip__vision__{key}": value for key, value in changes.items()})
    with pytest.raises(OperatorError, match=says):
        load_model_config(path)


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        (
            {SECOND: None},
            r"patch_embd.weight has shape \[120, 3, 4, 4\], but the configuration asks for \[120, 3, 2, 4, 4\]",
        ),
        ({SECOND: np.zeros((120, 3, 4, 3), np.float32)}, "its frames differ in shape or type; fetch the file again"),
        (dict.fromkeys((FIRST, SECOND), np.zeros((5, 32), np.float32)), r"shape \[5, 32\], no frame of a convolution"),
    ],
)
def test_frames_that_are_no_convolution_are_refused(replaced: Any, says: str, tmp_path: Path) -> None:
    model = checkpoints.build(grid_vision.CASES["qwen3_vl"]())
    path = gguf_grid_vision.save(model, tmp_path)
    gguf_grid_vision.save_tower(model, tmp_path / "mmproj-model.gguf", "Q8_0", replaced)
    files = open_model(path)
    with pytest.raises(OperatorError, match=says):
        check_checkpoint(files, read_config(files))
