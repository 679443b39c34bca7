"""The memory of images, as the options of a server set it."""

import fcntl
import os
from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.config.serve import load_config
from numaserve.server.images.expansion import EXPANSIONS
from numaserve.server.images.geometry import most_tiles
from numaserve.server.service.images import check_special_tokens, create_image_store, image_limits
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.images import ImageInput, Tiles

from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.image_files import SETTINGS

# Sides of tiles, and longest edges, of published checkpoints.
PUBLISHED = [(512, 2048), (384, 1536), (364, 1456), (364, 1820)]


def published(tile: int, longest_edge: int) -> ImageInput:
    return replace(SETTINGS, sizes=Tiles(tile, longest_edge, True, 64))


@pytest.mark.parametrize(("tile", "longest_edge"), PUBLISHED)
def test_the_defaults_hold_three_of_the_largest_requests(tile: int, longest_edge: int) -> None:
    config = load_config({"model": "demo"})
    settings, limits = published(tile, longest_edge), image_limits(config)
    store = create_image_store(config, settings)
    assert store.num_tiles >= 3 * limits.images * most_tiles(settings, limits.pixels)
    assert os.fstat(store.fd).st_size == store.num_tiles * settings.tile_bytes <= 1 << 30
    assert os.fstat(store.fd).st_blocks == 0  # memory is taken when a tile is written
    assert fcntl.fcntl(store.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    store.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_image_pixels": 262143},
            "max_image_pixels is 262143, and the smallest image of the model has 262144 pixels: "
            "set it to at least 262144",
        ),
        (
            {"image_memory_gib": 0.5},
            r"image_memory_gib is 0\.5, enough for 682 tiles of images, and 64 images of up to 5 tiles need 960: set "
            r"image_memory_gib to at least 0\.71, or lower max_images or max_image_pixels",
        ),
    ],
)
def test_what_does_not_fit_is_the_operators_to_change(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=f"^{message}$"):
        create_image_store(load_config({"model": "demo", **options}), published(512, 2048))


def test_the_advised_memory_is_enough() -> None:
    config = load_config({"model": "demo", "image_memory_gib": 0.71})
    create_image_store(config, published(512, 2048)).close()
    whole = published(512, 2048).low()
    create_image_store(load_config({"model": "demo", "image_memory_gib": 0.15}), whole).close()


def test_the_limits_are_those_of_the_options() -> None:
    config = load_config({"model": "demo", "max_image_file_mib": 0.5, "max_images": 3, "max_image_file_pixels": 7})
    limits = image_limits(config)
    assert (limits.images, limits.file_bytes, limits.file_pixels, limits.pixels) == (3, 1 << 19, 7, 1 << 20)


def test_a_tokenizer_may_begin_texts_with_a_token_of_its_own() -> None:
    markers = {SETTINGS.token: "<image>", SETTINGS.token + 1: EXPANSIONS["idefics3"].edge}
    check_special_tokens(SETTINGS, ByteTokenizer(markers=markers))
