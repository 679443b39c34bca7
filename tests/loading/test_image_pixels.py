"""The pixels of tiles equal those of transformers' image processors, bit for bit."""

import io
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numaserve.server.images.geometry import Layout, Size, lay_out, most_tiles
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits
from numaserve.workers.interface.images import ImageInput, Tiles
from PIL import Image, ImageOps

from tests.support.image_files import SETTINGS, files, in_file, pattern

LIMITS = ImageLimits(images=1, file_bytes=1 << 24, file_pixels=1 << 24, pixels=1 << 30)
FILES = dict(files())
PUBLISHED = [(512, 2048), (384, 1536), (364, 1456), (378, 5000)]


def processors() -> list[type[Any]]:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    return [Idefics3ImageProcessorPil, SmolVLMImageProcessorPil]


def processor(kind: type[Any], settings: ImageInput) -> Any:
    sizes = settings.sizes
    assert isinstance(sizes, Tiles)
    return kind(
        size={"longest_edge": sizes.longest_edge},
        max_image_size={"longest_edge": sizes.side},
        do_image_splitting=sizes.split,
        resample=settings.resample,
        rescale_factor=settings.rescale,
        image_mean=list(settings.mean),
        image_std=list(settings.std),
        return_row_col_info=True,
    )


def check(data: bytes, settings: ImageInput, kinds: list[type[Any]]) -> None:
    layout, tiles = to_tiles(data, settings, LIMITS)
    pixels = np.stack([np.frombuffer(tile, np.uint8).reshape(*layout.tile[::-1], 3) for tile in tiles])
    found = settings.table()[np.arange(3), pixels]
    with Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image)
    for kind in kinds:
        expected = processor(kind, settings)(upright, return_tensors="np")
        assert (layout.rows, layout.cols) == (expected["rows"][0][0], expected["cols"][0][0])
        assert np.moveaxis(expected["pixel_values"][0], 1, -1).tobytes() == found.tobytes()
        assert expected["pixel_attention_mask"].all()


@pytest.mark.parametrize("name", FILES)
def test_every_format_and_mode_has_the_pixels_of_transformers(name: str) -> None:
    check(FILES[name], SETTINGS, processors()[:1])


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("resample", [0, 1, 2, 3])
def test_every_shape_and_filter_has_the_pixels_of_transformers(split: bool, resample: int) -> None:
    sizes = [(1, 1), (1, 700), (700, 1), (64, 64), (65, 64), (63, 200), (300, 257), (256, 144), (31, 999), (1200, 800)]
    settings = replace(
        SETTINGS if split else SETTINGS.low(), resample=resample, mean=(0.48, 0.45, 0.4), std=(0.22, 0.23, 0.3)
    )
    for width, height in sizes:
        check(in_file(pattern(width, height)), settings, processors())


def test_a_tile_of_the_published_size_has_the_pixels_of_transformers() -> None:
    for tile, longest_edge in PUBLISHED[:2]:
        check(in_file(pattern(1280, 720)), of_sizes(tile, longest_edge), processors())


@cache
def layout_of(kind: type[Any]) -> Callable[..., Layout]:
    """Return what computes a layout with the processor's code, on arrays without memory."""

    class Sizes(kind):  # type: ignore[misc]
        def resize(self, image: npt.NDArray[np.uint8], size: Any, **_: Any) -> npt.NDArray[np.uint8]:
            import sys

            module = sys.modules[kind.__module__]
            edge = size.longest_edge
            height, width = module.get_resize_output_image_size(image, edge) if edge else (size.height, size.width)
            return np.broadcast_to(np.uint8(0), (3, height, width))

    def layout(width: int, height: int, edge: int, tile: int) -> Layout:
        from transformers.image_utils import SizeDict

        own = Sizes()
        first = own.resize(np.broadcast_to(np.uint8(0), (3, height, width)), SizeDict(longest_edge=edge))
        second = own.resize_for_vision_encoder(first, tile)
        _, rows, cols = own.split_images(second, {"longest_edge": tile})
        sizes = tuple(Size(image.shape[2], image.shape[1]) for image in (first, second))
        return Layout(sizes, Size(tile, tile), rows, cols)

    return layout


def of_sizes(tile: int, edge: int) -> ImageInput:
    return replace(SETTINGS, sizes=Tiles(tile, edge, True, 4))


def drawn_sizes(count: int) -> list[tuple[int, int]]:
    draw = random.Random(7)
    sizes = [(1, 1), (1, 65535), (65535, 1), (4096, 4097), (2048, 2047), (511, 513)]
    return sizes + [tuple(max(1, int(10 ** draw.uniform(0, 4.2))) for _ in "wh") for _ in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize(("tile", "edge"), PUBLISHED)
def test_sizes_rows_and_columns_are_those_of_transformers(tile: int, edge: int) -> None:
    settings = of_sizes(tile, edge)
    layout_there = layout_of(processors()[0])
    for width, height in drawn_sizes(1000):
        layout = lay_out(Size(width, height), settings, 1 << 30)
        expected = layout_there(width, height, edge, tile)
        assert 0 in expected.sizes[-1] or layout == expected, (width, height)
        assert layout.rows * layout.cols + 1 <= most_tiles(settings, 1 << 30)


@pytest.mark.parametrize(("edge", "tiles"), [(128, 5), (127, 5), (129, 10), (63, 1), (64, 1), (4096, 64 * 64 + 1)])
def test_the_maximum_of_tiles_is_that_of_a_square(edge: int, tiles: int) -> None:
    settings = of_sizes(64, edge)
    layout = lay_out(Size(1000, 1000), settings, 1 << 30)
    assert most_tiles(settings, 1 << 30) == tiles == layout.rows * layout.cols + 1


def test_a_limit_of_pixels_gives_the_sizes_of_the_largest_edge_that_fits() -> None:
    settings = of_sizes(64, 300)
    layout_there = layout_of(processors()[0])
    for width, height in [(14, 55), *drawn_sizes(14)]:
        for limit in (64 * 64, 4 * 64 * 64, 7 * 64 * 64, 10**9):
            layout = lay_out(Size(width, height), settings, limit)
            every = (layout_there(width, height, edge, 64) for edge in range(300, 1, -1))
            expected = next(each for each in every if each.sizes[-1].pixels <= limit)
            assert 0 in expected.sizes[-1] or layout == expected, (width, height, limit)
            assert layout.rows * layout.cols + 1 <= most_tiles(settings, limit)
