"""Promise: images of Llama 4 have the sizes, the values and the text that transformers gives them.

Its image processor needs torchvision, so the functions of its module are taken from the source.
"""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numaserve.server.images.expansion import EXPANSIONS
from numaserve.server.images.geometry import Size, lay_out, most_tiles
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits, Picture
from numaserve.server.scheduler.images import Tile
from numaserve.workers.interface.images import Canvas, ImageInput
from numaserve.workers.interface.protocol import TowerWork
from numaserve.workers.layers.class_tower import ClassTower
from numaserve.workers.layers.grid_tower import ROTARY
from numaserve.workers.layers.vision import PATCHES
from numaserve.workers.models.load import load_model_config
from numaserve.workers.process.tower_inputs import make_inputs
from numaserve.workers.program.outside import OutsideRows
from PIL import Image
from transformers.models.llama4.modeling_llama4 import Llama4VisionRotaryEmbedding

from tests.support import checkpoints, llama4_vision, vision
from tests.support.image_files import in_file, pattern
from tests.support.source_functions import functions_of

FUNCTIONS = ("get_factors", "get_max_res_without_distortion", "find_supported_resolutions", "get_best_fit")
PUBLISHED = Canvas.of(336, 144, 16)
LIMITS = ImageLimits(8, 1 << 22, 1 << 24, 1 << 24)
HALF = (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    return functions_of("transformers.models.llama4.image_processing_llama4", *FUNCTIONS)


@pytest.mark.parametrize("limit", [16, 9, 4, 1])
def test_sizes_are_those_of_transformers(limit: int, functions: dict[str, Any]) -> None:
    draw = random.Random(limit)
    settings = ImageInput(PUBLISHED, 2, True, 1 / 255, HALF, HALF, 1, "llama4")
    square = SimpleNamespace(height=336, width=336)
    functions["find_supported_resolutions"].cache_clear()
    possible = torch.tensor(functions["find_supported_resolutions"].__wrapped__(limit, square))
    assert most_tiles(settings, limit * 336**2) == (limit + 1 if limit > 1 else 1)
    for _ in range(1000):
        width, height = (max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh")
        if draw.random() < 0.3:  # sizes at which scales are equal
            width, height = (336 * draw.randint(1, 5) for _ in "wh")
        canvas = functions["get_best_fit"]((height, width), possible).tolist()
        most = [min(max(each, 336), edge) for each, edge in zip((height, width), canvas, strict=True)]
        high, wide = functions["get_max_res_without_distortion"]((height, width), tuple(most))
        found = lay_out(Size(width, height), settings, limit * 336**2)
        assert found.canvas == (canvas[1], canvas[0])
        assert found.sizes == ((max(wide, 1), max(high, 1)),)
        rows, cols = canvas[0] // 336, canvas[1] // 336
        assert (found.rows, found.cols) == ((rows, cols) if rows * cols > 1 else (0, 0))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama4_vision.save(checkpoints.build(llama4_vision.config()), tmp_path_factory.mktemp("llama4"))


def test_tiles_lie_on_black_and_the_last_is_the_whole_image(model: Path) -> None:
    settings = load_model_config(model).images
    assert settings is not None
    image = pattern(100, 40)
    layout, tiles = to_tiles(in_file(image), settings, LIMITS)
    rows, cols, side = layout.rows, layout.cols, llama4_vision.TILE
    assert (rows, cols) == (1, 3)
    canvas = np.zeros((rows * side, cols * side, 3), np.uint8)
    (inner,) = layout.sizes
    canvas[: inner.height, : inner.width] = np.asarray(image.resize(inner, Image.Resampling.BILINEAR))
    expected = canvas.reshape(rows, side, cols, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    found = np.stack([np.frombuffer(tile, np.uint8).reshape(side, side, 3) for tile in tiles])
    np.testing.assert_array_equal(found[:-1], expected)
    np.testing.assert_array_equal(found[-1], np.asarray(image.resize((side, side), Image.Resampling.BILINEAR)))
    low, (whole,) = to_tiles(in_file(image), settings.low(), LIMITS)
    assert (low.rows, low.cols, len(whole)) == (0, 0, side * side * 3)


def test_resizing_differs_from_torchs_by_one_level_at_most() -> None:
    image = pattern(500, 300)
    for size in ((336, 202), (120, 333), (672, 404)):
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
        expected = torch.nn.functional.interpolate(
            pixels, size=(size[1], size[0]), mode="bilinear", antialias=True, align_corners=False
        )
        found = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(found - expected[0].permute(1, 2, 0).numpy().astype(int)).max() <= 1


def test_values_and_rotation_are_those_of_transformers(model: Path) -> None:
    config = load_model_config(model)
    tower, settings = config.decoder.tower, config.images
    assert isinstance(tower, ClassTower)
    assert settings is not None
    tile = vision.random_tiles(llama4_vision.config(), 1)
    columns = {PATCHES: tower.embedding.pixels, ROTARY: 2 * tower.rope.rotary_dim}
    given = {name: np.full((tower.patches, each), np.nan, np.float32) for name, each in columns.items()}
    inputs = make_inputs(tower, settings.table(), OutsideRows(given, {}))
    inputs.fill(tile.reshape(-1), TowerWork(0, 0))
    values = torch.nn.functional.unfold(llama4_vision.values_of(tile).float(), tower.patch, stride=tower.patch)[0].T
    np.testing.assert_array_equal(given[PATCHES], np.concatenate([values.numpy(), np.zeros((1, values.shape[1]))]))
    turns = Llama4VisionRotaryEmbedding(llama4_vision.config().vision_config).freqs_ci.squeeze(1)
    np.testing.assert_allclose(given[ROTARY], torch.cat([turns.real, turns.imag], dim=1).numpy(), atol=1e-6)


@pytest.mark.parametrize(("rows", "cols"), [(0, 0), (1, 3), (2, 2), (3, 1)])
def test_the_text_of_an_image_is_that_of_the_processor(rows: int, cols: int) -> None:
    tile = Tile(0, b"", 3, 3)
    picture = Picture(rows, cols, (tile,) * (rows * cols + 1))
    found = EXPANSIONS["llama4"].of(picture, llama4_vision.PLACEHOLDER)
    assert found == llama4_vision.text_of(rows, cols)
