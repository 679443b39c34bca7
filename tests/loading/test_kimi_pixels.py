"""Promise: images for Kimi K2.5's tower get the sizes, patches, positions and rotation of transformers.

Its image processor needs torchvision, whose resizing differs by one level at most: see test_llama4_pixels. The model's
own processor resizes with Pillow.
"""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.server.images.geometry import Size, lay_out
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits
from numaserve.workers.interface.images import ImageInput, Padded
from numaserve.workers.interface.protocol import TowerWork
from numaserve.workers.layers.grid_tower import ROTARY, TAPS, GridTower
from numaserve.workers.layers.vision import PATCHES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.process.tower_inputs import make_inputs
from numaserve.workers.program.outside import OutsideRows
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25VisionRotaryEmbedding
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from tests.support import checkpoints, kimi_vision
from tests.support.image_files import in_file, pattern

LIMITS = ImageLimits(8, 1 << 22, 1 << 24, 1 << 24)
HALF = (0.5, 0.5, 0.5)
SIZES = [(40, 30), (8, 8), (64, 64), (65, 63), (300, 20), (12, 400), (1000, 700), (1, 1), (1, 80)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kimi_vision.save(checkpoints.build(kimi_vision.config()), tmp_path_factory.mktemp("kimi"))


@pytest.mark.parametrize("size", SIZES)
def test_patches_positions_and_rotation_are_those_of_transformers(size: tuple[int, int], model: Path) -> None:
    config = load_model_config(model)
    settings, tower = config.images, config.decoder.tower
    assert settings is not None
    assert isinstance(tower, GridTower)
    image = pattern(*size)
    layout, (tile,) = to_tiles(in_file(image), settings, LIMITS)
    pixels = kimi_vision.fitted(image)
    assert (layout.tile.height, layout.tile.width) == pixels.shape[:2]
    assert tile == pixels.tobytes()
    rows, cols = settings.sizes.grid(*layout.tile)
    columns = {PATCHES: tower.embedding.pixels, ROTARY: 2 * tower.rope.rotary_dim, TAPS: 32}
    given = {name: np.zeros((tower.patches, each), np.float32) for name, each in columns.items()}
    inputs, work = make_inputs(tower, settings.table(), OutsideRows(given, {})), TowerWork(0, 0, rows=rows, cols=cols)
    inputs.fill(np.frombuffer(tile, np.uint8), work)
    count, _ = inputs.sizes(work)
    order = in_squares(rows, cols)
    expected = kimi_vision.inputs_of([pixels])
    assert given[PATCHES][:count].tobytes() == expected["pixel_values"][order].contiguous().numpy().tobytes()
    numbers, weights = get_vision_interpolation_indices_and_weights(
        expected["image_grid_thw"], tower.side, mode="bicubic"
    )
    np.testing.assert_array_equal(given[TAPS].view(np.int32)[:count, :16], numbers[order])
    assert given[TAPS][:count, 16:].tobytes() == weights[order].contiguous().numpy().tobytes()
    vision = hf.AutoConfig.from_pretrained(model).vision_config
    places = torch.cartesian_prod(torch.arange(rows * 2), torch.arange(cols * 2))[order]
    cosines, sines = Kimi_K25VisionRotaryEmbedding(vision)(torch.zeros(1), places)
    # Those of a column and of a row alternate there.
    pairs = given[ROTARY].shape[1] // 2
    halves = [each[:, first:pairs:2] for each in (cosines, sines) for first in (0, 1)]
    np.testing.assert_allclose(given[ROTARY][:count], torch.cat(halves, dim=1), atol=1e-5)


def in_squares(rows: int, cols: int) -> torch.Tensor:
    """The number of each patch by rows, in the order of squares."""
    return torch.arange(rows * cols * 4).view(rows, 2, cols, 2).transpose(1, 2).reshape(-1)


def test_values_are_those_of_the_models_own_processor(model: Path) -> None:
    settings = load_model_config(model).images
    assert settings is not None
    expected = ((np.arange(256) / 255.0).astype(np.float32) - np.float32(0.5)) * (1.0 / np.array(0.5, np.float32))
    np.testing.assert_array_equal(settings.table(), [expected] * 3)


@pytest.mark.parametrize(("patches", "longest"), [(16384, 512), (100, 512), (65536, 512), (1, 4), (300, 10)])
def test_sizes_are_those_of_transformers(patches: int, longest: int) -> None:
    draw = random.Random(patches)
    sizes = Padded.of(14, 2, patches, longest)
    settings = ImageInput(sizes, 3, True, 1 / 255, HALF, HALF, 1)
    for _ in range(1000):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.5))) for _ in "wh")
        (high, wide), (all_high, all_wide) = kimi_vision.navit_resize(height, width, 14, 2, patches, longest)
        found = lay_out(Size(width, height), settings, 1 << 40)
        assert found.sizes == ((wide, high),)
        assert found.tile == found.canvas == (all_wide, all_high)


@pytest.mark.parametrize("limit", [1048576, 65536, 784])
def test_an_image_beyond_the_limit_is_made_smaller(limit: int) -> None:
    draw = random.Random(4)
    unbounded = ImageInput(Padded.of(14, 2, 16384, 512), 3, True, 1 / 255, HALF, HALF, 1)
    settings = unbounded.within(limit)
    for _ in range(200):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh")
        tile = lay_out(Size(width, height), settings, limit).tile
        assert tile.pixels <= limit
        assert tile.width % 28 == tile.height % 28 == 0
        whole = lay_out(Size(width, height), unbounded, 1 << 40).tile
        assert tile == whole or whole.pixels > limit or max(whole) * 28 > limit
    assert settings.low().sizes.rows == min(64, limit // 784)
