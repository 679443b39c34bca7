"""Promise: images get the pixels of transformers' PIL image processors of Gemma 3 and 4, bit for bit, and patches and
places of patches.

The processor of the unified Gemma 4 needs torchvision, whose resizing differs by one level at most: see
test_llama4_pixels. All else is done by the functions of its module.
"""

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.server.images.geometry import Size, lay_out
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits
from numaserve.workers.interface.images import Grid, ImageInput
from numaserve.workers.interface.protocol import TowerWork
from numaserve.workers.layers.grid_tower import ROTARY, TAPS
from numaserve.workers.layers.patch_tower import PatchTower
from numaserve.workers.layers.pooled_tower import PooledTower
from numaserve.workers.layers.vision import PATCHES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.process.tower_inputs import make_inputs
from numaserve.workers.program.outside import OutsideRows
from PIL import Image

from tests.support import checkpoints, gemma4_vision, gemma_vision
from tests.support.image_files import in_file, pattern
from tests.support.source_functions import functions_of

LIMITS = ImageLimits(8, 1 << 22, 1 << 24, 1 << 24)
SIZES = [(40, 30), (8, 8), (64, 64), (65, 63), (300, 20), (12, 400), (1000, 700), (1, 1), (1, 900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = checkpoints.build(gemma_vision.CASES["gemma3"]())
    return gemma_vision.save(model, tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gemma4_vision.save(gemma4_vision.build("gemma4-whole"), tmp_path_factory.mktemp("gemma4"))


@pytest.fixture(scope="module")
def unified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gemma4_vision.save(gemma4_vision.build("gemma4-unified"), tmp_path_factory.mktemp("unified"))


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
    tower = load_model_config(pooled).decoder.tower
    assert isinstance(tower, PooledTower)
    given, expected = filled(size, pooled)
    taps = given[TAPS]
    places = taps.view(np.int32)[:, :2] - np.array([0, tower.side])
    in_order = places[:, 1] * (1 + places[:, 0].max()) + places[:, 0]
    values = np.asarray(expected["pixel_values"][0], np.float32)[in_order]
    assert given[PATCHES].tobytes() == by_channel(2 * (values - np.float32(0.5))).tobytes()
    np.testing.assert_array_equal(places, expected["image_position_ids"][0][in_order])
    np.testing.assert_array_equal(taps[:, 2:], 1.0)
    half = tower.rope.rotary_dim // 2
    inverse = 100.0 ** -(np.arange(half) / half)
    angles = (places[:, :, None] * inverse).reshape(len(places), -1)
    expected_rotary = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    np.testing.assert_allclose(given[ROTARY], expected_rotary, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_squares_and_places_of_a_unified_gemma_4_are_those_of_transformers(
    size: tuple[int, int], unified: Path
) -> None:
    tower = load_model_config(unified).decoder.tower
    assert isinstance(tower, PatchTower)
    given, expected = filled(size, unified)
    count = len(given[PATCHES])
    assert given[PATCHES].tobytes() == by_channel(expected["pixel_values"][0].numpy()[:count]).tobytes()
    places = given[TAPS].view(np.int32)[:, :2] - np.array([0, tower.side])
    np.testing.assert_array_equal(places, expected["image_position_ids"][0][:count])
    np.testing.assert_array_equal(given[TAPS][:, 2:], 1.0)


def filled(size: tuple[int, int], folder: Path) -> tuple[dict[str, np.ndarray], dict[str, torch.Tensor]]:
    """Return the rows that a tower is given for an image, and the tensors of transformers' processor."""
    config = load_model_config(folder)
    tower, settings = config.decoder.tower, config.images
    assert isinstance(tower, PooledTower | PatchTower)
    assert settings is not None
    data, image = opened(size)
    layout, (tile,) = to_tiles(data, settings, LIMITS)
    rows, cols = settings.sizes.grid(*layout.tile)
    expected = gemma4_vision.processed(hf.AutoConfig.from_pretrained(folder), [image])
    assert [*expected["num_soft_tokens_per_image"]] == [rows * cols]
    # An embedder without blocks is given no rotation.
    rotary = sum(each.rotary_dim for each in tower.rotations)
    columns = {PATCHES: tower.embedding.pixels, TAPS: 4, **({ROTARY: rotary} if rotary else {})}
    given = {name: np.zeros((tower.patches, each), np.float32) for name, each in columns.items()}
    inputs = make_inputs(tower, settings.table(), OutsideRows(given, {}))
    work = TowerWork(0, 0, rows=rows, cols=cols)
    inputs.fill(np.frombuffer(tile, np.uint8), work)
    count, _ = inputs.sizes(work)
    return {name: each[:count] for name, each in given.items()}, expected


def by_channel(values: np.ndarray) -> np.ndarray:
    """Values of patches whose channels lie next to each other, in the order of channels."""
    return np.ascontiguousarray(values.reshape(len(values), -1, 3).transpose(0, 2, 1).reshape(len(values), -1))


def test_sizes_are_those_of_gemma_4_in_transformers() -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    name = "get_aspect_ratio_preserving_size"
    unified = functions_of("transformers.models.gemma4_unified.image_processing_gemma4_unified", name)[name]
    draw = random.Random(3)
    for _ in range(2000):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh")
        for rows in (70, 280, 1120):
            sizes = Grid(square=48, least_pixels=48**2, pixels=rows * 48**2, fills=True)
            settings: Any = ImageInput(sizes, 3, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, 1)
            high, wide = get_aspect_ratio_preserving_size(height, width, 16, rows * 9, 3)
            assert lay_out(Size(width, height), settings, 1 << 30).tile == (wide, high)
            assert unified(height, width, 16, rows * 9, 3) == (high, wide)
    assert settings.low().sizes.rows == 70
