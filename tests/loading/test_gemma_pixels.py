"""Promise: images get the pixels of transformers' PIL image processors of Gemma 3 and 4, bit for bit, and patches and
places of patches."""

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.server.images.geometry import Size, lay_out
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits
from numaserve.workers.interface.images import Grid, ImageInput
from numaserve.workers.interface.protocol import TowerWork
from numaserve.workers.layers.grid_tower import ROTARY, TAPS
from numaserve.workers.layers.pooled_tower import PooledTower
from numaserve.workers.layers.vision import PATCHES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.process.tower_inputs import make_inputs
from numaserve.workers.program.outside import OutsideRows
from PIL import Image

from tests.support import checkpoints, gemma4_vision, gemma_vision
from tests.support.image_files import in_file, pattern

LIMITS = ImageLimits(8, 1 << 22, 1 << 24, 1 << 24)
SIZES = [(40, 30), (8, 8), (64, 64), (65, 63), (300, 20), (12, 400), (1000, 700), (1, 1), (1, 900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = checkpoints.build(gemma_vision.CASES["gemma3"]())
    return gemma_vision.save(model, tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gemma4_vision.save(gemma4_vision.build("gemma4-whole"), tmp_path_factory.mktemp("gemma4"))


def opened(size: tuple[int, int]) -> tuple[bytes, Image.Image]:
    data = in_file(pattern(*size))
    return data, Image.open(io.BytesIO(data))


@pytest.mark.parametrize("size", SIZES)
def test_tiles_of_gemma_3_have_the_pixels_of_transformers(size: tuple[int, int], folder: Path) -> None:
    config = load_model_config(folder)
    assert config.images is not None
    data, image = opened(size)
    _, (tile,) = to_tiles(data, config.images, LIMITS)
    side = config.images.sizes.grid(80, 80)[0] * 16
    bytes_of = np.frombuffer(tile, np.uint8).reshape(side, side, 3)
    found = np.stack([row.take(bytes_of[..., channel]) for channel, row in enumerate(config.images.table())])
    expected = gemma_vision.processor_of(side)([image], return_tensors="np")["pixel_values"][0]
    assert found.tobytes() == np.asarray(expected, np.float32).tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_patches_and_places_of_gemma_4_are_those_of_transformers(size: tuple[int, int], pooled: Path) -> None:
    config = load_model_config(pooled)
    tower, settings = config.decoder.tower, config.images
    assert isinstance(tower, PooledTower)
    assert settings is not None
    data, image = opened(size)
    layout, (tile,) = to_tiles(data, settings, LIMITS)
    rows, cols = settings.sizes.grid(*layout.tile)
    expected = gemma4_vision.processor_of(tower.factor)([image], return_tensors="np")
    assert expected["num_soft_tokens_per_image"] == [rows * cols]
    columns = {PATCHES: tower.embedding.pixels, TAPS: 4, ROTARY: 2 * tower.rope.rotary_dim}
    outside = OutsideRows({name: np.zeros((tower.patches, each), np.float32) for name, each in columns.items()}, {})
    inputs, work = make_inputs(tower, settings.table(), outside), TowerWork(0, 0, rows=rows, cols=cols)
    inputs.fill(np.frombuffer(tile, np.uint8), work)
    count, _ = inputs.sizes(work)
    taps = outside.given(TAPS)[:count]
    places = taps.view(np.int32)[:, :2] - np.array([0, tower.embedding.places])
    in_order = places[:, 1] * cols * tower.factor + places[:, 0]
    patch = tower.patch
    values = np.asarray(expected["pixel_values"][0], np.float32)[in_order].reshape(count, patch * patch, 3)
    values = (2 * (values - np.float32(0.5))).transpose(0, 2, 1).reshape(count, -1)
    assert np.ascontiguousarray(outside.given(PATCHES)[:count]).tobytes() == values.tobytes()
    np.testing.assert_array_equal(places, expected["image_position_ids"][0][in_order])
    np.testing.assert_array_equal(taps[:, 2:], 1.0)
    half = tower.rope.rotary_dim // 2
    inverse = 100.0 ** -(np.arange(half) / half)
    angles = (places[:, :, None] * inverse).reshape(count, -1)
    expected_rotary = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    np.testing.assert_allclose(outside.given(ROTARY)[:count], expected_rotary, atol=1e-5)


def test_sizes_are_those_of_gemma_4_in_transformers() -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    draw = random.Random(3)
    for _ in range(2000):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh")
        for rows in (70, 280, 1120):
            sizes = Grid(square=48, least_pixels=48**2, pixels=rows * 48**2, fills=True)
            settings: Any = ImageInput(sizes, 3, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, 1)
            high, wide = get_aspect_ratio_preserving_size(height, width, 16, rows * 9, 3)
            assert lay_out(Size(width, height), settings, 1 << 30).tile == (wide, high)
    assert settings.low().sizes.rows == 70
