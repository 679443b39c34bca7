"""Promise: images of any size get the pixels of transformers' PIL image processor, bit for bit, and its patches."""

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.server.images.geometry import Size, UnsupportedSize, lay_out
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits, ImageProblem
from numaserve.workers.interface.images import Grid, ImageInput
from numaserve.workers.interface.protocol import TowerWork
from numaserve.workers.layers.grid_tower import ROTARY, TAPS, GridTower
from numaserve.workers.layers.vision import PATCHES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.process.tower_inputs import make_inputs
from numaserve.workers.program.outside import OutsideRows
from PIL import Image

from tests.support import checkpoints, grid_vision
from tests.support.image_files import in_file, pattern

LIMITS = ImageLimits(8, 1 << 22, 1 << 24, 1 << 24)
PUBLISHED = Grid(square=32, least_pixels=65536, pixels=16777216)
SIZES = [(40, 30), (8, 8), (64, 64), (65, 63), (300, 20), (12, 400), (1000, 700), (1, 1), (1, 190)]


def settings_of(model: Path) -> tuple[ImageInput, GridTower]:
    config = load_model_config(model)
    assert config.images is not None
    assert isinstance(config.decoder.tower, GridTower)
    return config.images, config.decoder.tower


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoints.build(grid_vision.CASES["qwen3_vl"]())
    return grid_vision.save(made, tmp_path_factory.mktemp("model"))


def outside_of(tower: GridTower) -> OutsideRows:
    columns = {PATCHES: tower.embedding.pixels, TAPS: 8, ROTARY: 2 * tower.rope.rotary_dim}
    return OutsideRows({name: np.zeros((tower.patches, each), np.float32) for name, each in columns.items()}, {})


@pytest.mark.parametrize("size", SIZES)
def test_pixels_patches_and_positions_are_those_of_transformers(size: tuple[int, int], model: Path) -> None:
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

    settings, tower = settings_of(model)
    data = in_file(pattern(*size))
    layout, (tile,) = to_tiles(data, settings, LIMITS)
    rows, cols = settings.sizes.grid(*layout.tile)
    kept = {
        name: each
        for name, each in grid_vision.processor_settings().items()
        if "type" not in name and "class" not in name
    }
    with Image.open(io.BytesIO(data)) as image:
        expected = Qwen2VLImageProcessorPil(**kept)([image], return_tensors="pt")
    assert expected["image_grid_thw"].tolist() == [[1, rows * 2, cols * 2]]
    outside = outside_of(tower)
    inputs, work = make_inputs(tower, settings.table(), outside), TowerWork(0, 0, rows=rows, cols=cols)
    inputs.fill(np.frombuffer(tile, np.uint8), work)
    count, features = inputs.sizes(work)
    assert (count, features) == (len(expected["pixel_values"]), rows * cols)
    assert outside.given(PATCHES)[:count].tobytes() == expected["pixel_values"].numpy().tobytes()
    grid = expected["image_grid_thw"]
    numbers, weights = get_vision_interpolation_indices_and_weights(grid, 7, align_corners=True, spatial_merge_size=2)
    taps = outside.given(TAPS)[:count]
    np.testing.assert_array_equal(taps.view(np.int32)[:, :4], numbers.numpy())
    np.testing.assert_array_equal(taps[:, 4:], weights.numpy())
    half = tower.rope.rotary_dim // 2
    inverse = 1e4 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = (get_vision_position_ids(grid, 2)[..., None] * inverse).flatten(1)
    found = outside.given(ROTARY)[:count]
    np.testing.assert_allclose(found, torch.cat([angles.cos(), angles.sin()], dim=1).float().numpy(), atol=1e-6)


def test_sizes_are_those_of_transformers() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    draw = random.Random(3)
    settings: Any = ImageInput(PUBLISHED, 3, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, 1)
    for _ in range(2000):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh")
        if max(width, height) / min(width, height) > 200:
            with pytest.raises(UnsupportedSize, match="the limit is 200"):
                lay_out(Size(width, height), settings, 1 << 30)
            continue
        for limit in (16777216, 1048576, 65536):
            high, wide = smart_resize(height, width, 32, 65536, limit)
            if high * wide > limit:  # of a very long image
                with pytest.raises(UnsupportedSize, match="whose edges differ less"):
                    lay_out(Size(width, height), settings.within(limit), limit)
                continue
            assert lay_out(Size(width, height), settings.within(limit), limit).tile == (wide, high)


def test_an_image_that_is_too_long_is_the_clients_to_crop(model: Path) -> None:
    settings, _ = settings_of(model)
    with pytest.raises(ImageProblem, match="Crop the image"):
        to_tiles(in_file(pattern(300, 1)), settings, LIMITS)


def test_few_details_are_the_least_pixels() -> None:
    settings = ImageInput(PUBLISHED, 3, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, 1).low()
    assert settings.sizes.rows == settings.sizes.least_rows == 64
