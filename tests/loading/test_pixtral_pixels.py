"""Promise: images for Pixtral's tower get the pixels of transformers' PIL image processor, bit for bit, and its
rotation."""

import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.server.images.geometry import Size, lay_out
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits
from numaserve.workers.interface.images import Fitted, ImageInput
from numaserve.workers.interface.protocol import TowerWork
from numaserve.workers.layers.grid_tower import ROTARY, GridTower
from numaserve.workers.layers.vision import PATCHES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.process.tower_inputs import make_inputs
from numaserve.workers.program.outside import OutsideRows
from PIL import Image
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding

from tests.support import checkpoints, grid_vision, pixtral
from tests.support.image_files import in_file, pattern

LIMITS = ImageLimits(8, 1 << 22, 1 << 24, 1 << 24)
PUBLISHED = Fitted.within_edge(28, 1540)
SIZES = [(40, 30), (8, 8), (64, 64), (65, 63), (300, 20), (12, 400), (1000, 700), (1, 1), (1, 80), (81, 79)]


def settings_of(model: Path) -> tuple[ImageInput, GridTower]:
    config = load_model_config(model)
    assert config.images is not None
    assert isinstance(config.decoder.tower, GridTower)
    return config.images, config.decoder.tower


@pytest.fixture(scope="module", params=["mistral3", "pixtral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoints.build(pixtral.CASES[request.param]())
    return pixtral.save(made, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_rotation_are_those_of_transformers(size: tuple[int, int], model: Path) -> None:
    settings, tower = settings_of(model)
    config = hf.AutoConfig.from_pretrained(model)
    data = in_file(pattern(*size))
    layout, (tile,) = to_tiles(data, settings, LIMITS)
    rows, cols = settings.sizes.grid(*layout.tile)
    with Image.open(io.BytesIO(data)) as image:
        expected = pixtral.processor_of(config)([image], return_tensors="pt")
    assert expected["image_sizes"].tolist() == [[rows * grid_vision.SQUARE, cols * grid_vision.SQUARE]]
    columns = {PATCHES: tower.embedding.pixels, ROTARY: 2 * tower.rope.rotary_dim}
    outside = OutsideRows({name: np.zeros((tower.patches, each), np.float32) for name, each in columns.items()}, {})
    inputs, work = make_inputs(tower, settings.table(), outside), TowerWork(0, 0, rows=rows, cols=cols)
    inputs.fill(np.frombuffer(tile, np.uint8), work)
    count, features = inputs.sizes(work)
    assert (count, features) == (rows * cols * tower.factor**2, rows * cols)
    order = grid_vision.in_squares(rows, cols, tower.factor)
    patches = torch.nn.functional.unfold(expected["pixel_values"], tower.patch, stride=tower.patch)[0].T[order]
    assert outside.given(PATCHES)[:count].tobytes() == patches.contiguous().numpy().tobytes()
    places = torch.cartesian_prod(torch.arange(rows * tower.factor), torch.arange(cols * tower.factor))[order]
    cosines, sines = PixtralVisionRotaryEmbedding(config.vision_config)(torch.zeros(1), places)
    found = outside.given(ROTARY)[:count]
    pairs = found.shape[1] // 2
    np.testing.assert_allclose(found, torch.cat([cosines[:, :pairs], sines[:, :pairs]], dim=1), atol=2e-6)


def test_sizes_are_those_of_transformers() -> None:
    draw = random.Random(3)
    settings = ImageInput(PUBLISHED, 3, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, 1, "pixtral")
    for _ in range(2000):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh")
        if max(width, height) > 1540 and min(width, height) * 1540 < max(width, height):
            continue  # transformers would resize it to no pixels
        image = np.broadcast_to(np.uint8(0), (3, height, width))
        high, wide = get_resize_output_image_size(image, 1540, 28, "channels_first")
        assert lay_out(Size(width, height), settings, 1 << 30).tile == (wide, high)


@pytest.mark.parametrize("limit", [1048576, 65536, 784])
def test_an_image_beyond_the_limit_has_the_largest_smaller_longest_edge(limit: int) -> None:
    draw = random.Random(4)
    unbounded = ImageInput(PUBLISHED, 3, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, 1, "pixtral")
    settings = unbounded.within(limit)
    for _ in range(200):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh")
        tile = lay_out(Size(width, height), settings, limit).tile
        assert tile.pixels <= limit
        assert tile.width % 28 == tile.height % 28 == 0
        whole = lay_out(Size(width, height), unbounded, limit).tile
        assert (whole.pixels <= limit) == (tile == whole)
        assert tile == whole or (tile.width + 28) * (tile.height + 28) > limit
    assert settings.low().sizes.rows == min(64, limit // 784)
