"""Promise: images of any size get the pixels of transformers' PIL image processor, bit for bit, and its patches."""

import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numaserve.server.images.geometry import Size, UnsupportedSize, lay_out
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits, ImageProblem
from numaserve.workers.interface.images import Grid, ImageInput, Widened
from numaserve.workers.interface.protocol import TowerWork
from numaserve.workers.layers.grid_tower import ROTARY, TAPS, GridTower
from numaserve.workers.layers.vision import PATCHES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.process.tower_inputs import make_inputs
from numaserve.workers.program.outside import OutsideRows
from PIL import Image
from transformers.models.paddleocr_vl import image_processing_pil_paddleocr_vl as paddleocr
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as qwen
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from tests.support import checkpoints, grid_vision
from tests.support.image_files import in_file, pattern

LIMITS = ImageLimits(8, 1 << 22, 1 << 24, 1 << 24)
PUBLISHED = Grid(square=32, least_pixels=65536, pixels=16777216)
SIZES = [(40, 30), (8, 8), (64, 64), (65, 63), (300, 20), (12, 400), (1000, 700), (1, 1), (1, 64), (7, 100)]


def settings_of(model: Path) -> tuple[ImageInput, GridTower]:
    config = load_model_config(model)
    assert config.images is not None
    assert isinstance(config.decoder.tower, GridTower)
    return config.images, config.decoder.tower


@dataclass
class Saved:
    """A checkpoint, and the form of its images."""

    folder: Path
    form: grid_vision.Form


@pytest.fixture(scope="module", params=["qwen3_vl", "paddleocr_vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    made = checkpoints.build(grid_vision.CASES[request.param]())
    return Saved(grid_vision.save(made, tmp_path_factory.mktemp(request.param)), grid_vision.form_of(made.config))


def outside_of(tower: GridTower) -> OutsideRows:
    columns = {PATCHES: tower.embedding.pixels, TAPS: 8, ROTARY: 2 * tower.rope.rotary_dim}
    return OutsideRows({name: np.zeros((tower.patches, each), np.float32) for name, each in columns.items()}, {})


@pytest.mark.parametrize("size", SIZES)
def test_pixels_patches_and_positions_are_those_of_transformers(size: tuple[int, int], model: Saved) -> None:
    settings, tower = settings_of(model.folder)
    data = in_file(pattern(*size))
    layout, (tile,) = to_tiles(data, settings, LIMITS)
    rows, cols = settings.sizes.grid(*layout.tile)
    with Image.open(io.BytesIO(data)) as image:
        expected = model.form.processor_of()([image], return_tensors="pt")
    assert expected["image_grid_thw"].tolist() == [[1, rows * 2, cols * 2]]
    outside = outside_of(tower)
    inputs, work = make_inputs(tower, settings.table(), outside), TowerWork(0, 0, rows=rows, cols=cols)
    inputs.fill(np.frombuffer(tile, np.uint8), work)
    count, features = inputs.sizes(work)
    patches = expected["pixel_values"]
    if patches.ndim > 2:  # by rows of the whole image
        patches = patches[grid_vision.in_squares(rows, cols, tower.factor)].flatten(1)
    assert (count, features) == (len(patches), rows * cols)
    assert outside.given(PATCHES)[:count].tobytes() == patches.numpy().tobytes()
    grid, corners = expected["image_grid_thw"], not tower.embedding.stretched
    numbers, weights = get_vision_interpolation_indices_and_weights(
        grid, 7, align_corners=corners, spatial_merge_size=2
    )
    taps = outside.given(TAPS)[:count]
    np.testing.assert_array_equal(taps.view(np.int32)[:, :4], numbers.numpy())
    np.testing.assert_array_equal(taps[:, 4:], weights.numpy())
    half = tower.rope.rotary_dim // 2
    inverse = 1e4 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = (get_vision_position_ids(grid, 2)[..., None] * inverse).flatten(1)
    found = outside.given(ROTARY)[:count]
    np.testing.assert_allclose(found, torch.cat([angles.cos(), angles.sin()], dim=1).float().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "resized"),
    [(PUBLISHED, qwen.smart_resize), (Widened(28, 147384, 2822400), paddleocr.smart_resize)],
    ids=["qwen", "paddleocr"],
)
def test_sizes_are_those_of_transformers(sizes: Grid, resized: Callable[..., tuple[int, int]]) -> None:
    draw = random.Random(3)
    settings: Any = ImageInput(sizes, 3, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, 1)
    for _ in range(2000):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh")
        try:
            resized(height, width, sizes.square)
        except ValueError:
            with pytest.raises(UnsupportedSize, match="the limit is 200"):
                lay_out(Size(width, height), settings, 1 << 30)
            continue
        for limit in (sizes.pixels, 1048576, sizes.least_pixels):
            high, wide = resized(height, width, sizes.square, sizes.least_pixels, limit)
            if high * wide > limit:  # of a very long image
                with pytest.raises(UnsupportedSize, match="whose edges differ less"):
                    lay_out(Size(width, height), settings.within(limit), limit)
                continue
            assert lay_out(Size(width, height), settings.within(limit), limit).tile == (wide, high)


def test_an_image_that_is_too_long_is_the_clients_to_crop(model: Saved) -> None:
    settings, _ = settings_of(model.folder)
    with pytest.raises(ImageProblem, match="Crop the image"):
        to_tiles(in_file(pattern(300, 1)), settings, LIMITS)


def test_few_details_are_the_least_pixels() -> None:
    settings = ImageInput(PUBLISHED, 3, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, 1).low()
    assert settings.sizes.rows == settings.sizes.least_rows == 64
