"""The memory of tiles: whose it is, and when it is free again."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from numaserve.server.engine.types import QueueFull
from numaserve.server.images.store import ImageStore, StoreFull
from numaserve.workers.interface.images import Tiles

from tests.support.image_files import SETTINGS

SMALL = replace(SETTINGS, sizes=Tiles(2, 256, True, 4))
TILES = 18
GRID = 2, 2


@pytest.fixture
def store() -> Iterator[ImageStore]:
    fd = os.memfd_create("test")
    os.ftruncate(fd, TILES * SMALL.tile_bytes)
    made = ImageStore(fd, SMALL, TILES)
    yield made
    made.close()


def pixels(value: int) -> memoryview:
    return memoryview(bytes([value]) * SMALL.tile_bytes)


def in_memory(store: ImageStore, number: int) -> bytes:
    return os.pread(store.fd, SMALL.tile_bytes, number * SMALL.tile_bytes)


def test_a_tile_is_where_its_number_says_until_its_object_dies(store: ImageStore) -> None:
    with store.reserve("a", 2) as reserved:
        first, second = reserved.write(pixels(1), GRID), reserved.write(pixels(2), GRID)
    assert in_memory(store, first.number) == bytes(pixels(1))
    assert in_memory(store, second.number) == bytes(pixels(2))
    number = first.number
    with store.reserve("a", 1) as reserved:
        assert reserved.write(pixels(3), GRID).number not in {number, second.number}
    del first
    with store.reserve("a", 1) as reserved:
        assert reserved.write(pixels(4), GRID).number == number


def test_the_digest_is_that_of_settings_shape_and_pixels(store: ImageStore) -> None:
    with store.reserve("a", 4) as reserved:
        one, same, other = (reserved.write(pixels(value), GRID) for value in (1, 1, 2))
        narrow = reserved.write(pixels(1), (1, 4))  # equal pixels of another shape
    assert one.digest == same.digest != other.digest
    assert one.digest != narrow.digest
    assert len(one.digest) == 32
    assert one.number != same.number
    fd = os.memfd_create("test")
    os.ftruncate(fd, 8 * SMALL.tile_bytes)
    others = ImageStore(fd, replace(SMALL, sizes=Tiles(2, 7, True, 4)), 8)
    with others.reserve("a", 1) as reserved:
        assert reserved.write(pixels(1), GRID).digest != one.digest
    others.close()


def test_a_client_leaves_tiles_to_clients_that_hold_fewer(store: ImageStore) -> None:
    held = []
    with pytest.raises(StoreFull) as refused:
        while True:
            with store.reserve("flood", 1) as reserved:
                held.append(reserved.write(pixels(1), GRID))
    assert isinstance(refused.value, QueueFull)
    assert refused.value.retry_after >= 1
    assert len(held) == 16  # and an eighth of them stays free
    with store.reserve("other", 1) as reserved:
        tile = reserved.write(pixels(2), GRID)
        assert in_memory(store, tile.number) == bytes(pixels(2))
    held.clear()
    with store.reserve("flood", 15):
        pass


def test_a_request_gets_all_its_tiles_or_none(store: ImageStore) -> None:
    with store.reserve("a", 10):
        with (
            pytest.raises(StoreFull, match="10 of its 18 tiles are in use, and the request needs up to 9"),
            store.reserve("b", 9),
        ):
            pass
        with store.reserve("b", 7):
            pass


def test_unused_tiles_are_free_again_and_a_late_writer_gets_none(store: ImageStore) -> None:
    with store.reserve("a", 16) as reserved:
        tile = reserved.write(pixels(1), GRID)
    with pytest.raises(IndexError):
        reserved.write(pixels(2), GRID)
    with store.reserve("a", 15):
        pass
    assert in_memory(store, tile.number) == bytes(pixels(1))


def test_tiles_may_end_in_any_thread(store: ImageStore) -> None:
    with store.reserve("a", 16) as reserved:
        tiles = [reserved.write(pixels(1), GRID) for _ in range(16)]
    threads = [threading.Thread(target=tiles.pop) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.reserve("a", 16):
        pass


def test_pixels_of_a_wrong_size_change_nothing(store: ImageStore) -> None:
    before = os.pread(store.fd, TILES * SMALL.tile_bytes, 0)
    with store.reserve("a", 16) as reserved, pytest.raises(ValueError, match="13 bytes of a tile"):
        reserved.write(memoryview(bytes([7]) * (SMALL.tile_bytes + 1)), GRID)
    assert os.pread(store.fd, TILES * SMALL.tile_bytes, 0) == before
    with store.reserve("a", 16):
        pass
