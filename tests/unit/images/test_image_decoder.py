"""The decoding of a request's images: fair among clients, bounded, and once for equal images of a scope."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator

import pytest
from numaserve.server.engine.types import NotReady, QueueFull
from numaserve.server.images.decoder import ImageDecoder
from numaserve.server.images.encoded import digest_of, slices
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.store import ImageStore
from numaserve.server.images.types import ImageLimits, ImageProblem, Picture
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope
from numaserve.server.scheduler.client import Client
from numaserve.server.text.caller import CALLER

from tests.support.image_files import SETTINGS, in_file, pattern

LIMITS = ImageLimits(images=4, file_bytes=1 << 20, file_pixels=1 << 20, pixels=4 * 64 * 64)
TILES = 60
ONE, OTHER = Client("one"), Client("other")
BAD = b64encode(b"no image").decode()


def encoded(salt: int = 0) -> str:
    return b64encode(in_file(pattern(90, 70, salt=salt))).decode()


@pytest.fixture
def decoder() -> Iterator[ImageDecoder]:
    fd = os.memfd_create("test")
    os.ftruncate(fd, TILES * SETTINGS.tile_bytes)
    store = ImageStore(fd, SETTINGS, TILES)
    made = ImageDecoder(store, LIMITS, Metrics("m"))
    yield made
    made.close()
    store.close()


async def decode(
    decoder: ImageDecoder, *texts: str, client: Client = ONE, scope: CacheScope = COMMON_SCOPE
) -> list[Picture]:
    """The pictures of good images."""
    found = await answers(decoder, *texts, client=client, scope=scope)
    pictures = [each for each in found if isinstance(each, Picture)]
    assert pictures == found
    return pictures


async def answers(
    decoder: ImageDecoder, *texts: str, client: Client = ONE, scope: CacheScope = COMMON_SCOPE
) -> list[Picture | ImageProblem]:
    CALLER.set(client)
    return await decoder.decode(texts, scope, client)


def problem_of(found: Picture | ImageProblem) -> tuple[str, str]:
    """The code and the message of an image that cannot be used."""
    assert isinstance(found, ImageProblem)
    return found.code, str(found)


def pixels(decoder: ImageDecoder, picture: Picture) -> list[bytes]:
    nbytes = SETTINGS.tile_bytes
    return [os.pread(decoder._store.fd, nbytes, tile.number * nbytes) for tile in picture.tiles]


def pids(decoder: ImageDecoder) -> list[int]:
    return [worker._process.pid for worker in decoder._workers]


async def test_the_pixels_of_each_image_are_in_the_store_in_order(decoder: ImageDecoder) -> None:
    texts = [encoded(salt) for salt in (0, 50, 0)]
    pictures = await decode(decoder, *texts)
    for salt, picture in zip((0, 50, 0), pictures, strict=True):
        layout, tiles = to_tiles(in_file(pattern(90, 70, salt=salt)), SETTINGS, LIMITS)
        assert (picture.rows, picture.cols) == (layout.rows, layout.cols) == (2, 2)
        assert pixels(decoder, picture) == tiles
        assert picture.tiles[-1].digest == hashlib.sha256(SETTINGS.digest + repr((2, 2)).encode() + tiles[-1]).digest()
    assert pictures[0] is pictures[2]  # decoded once
    split, whole = await decoder.decode(texts[:1] * 2, COMMON_SCOPE, ONE, whole=frozenset({1}))
    assert split is pictures[0]
    assert isinstance(whole, Picture)
    assert (whole.rows, whole.cols) == (0, 0)
    single = SETTINGS.low()
    assert pixels(decoder, whole) == to_tiles(in_file(pattern(90, 70)), single, LIMITS)[1]
    assert await decode(decoder) == []


async def test_a_scope_finds_its_images_again_and_no_other_scope_does(decoder: ImageDecoder) -> None:
    (first,) = await decode(decoder, encoded())
    for pid in pids(decoder):
        os.kill(pid, signal.SIGSTOP)  # nothing can be decoded
    (again,) = await decode(decoder, encoded(), client=OTHER)
    assert again is first
    for scope in (CacheScope("group"), CacheScope("", "salt")):
        waiting = asyncio.create_task(decode(decoder, encoded(), scope=scope))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        waiting.cancel()


async def test_images_that_are_decoded_and_found_are_counted(decoder: ImageDecoder) -> None:
    await decode(decoder, encoded(1), encoded(2), encoded(1))
    await decode(decoder, encoded(2))
    await answers(decoder, BAD, BAD)
    await answers(decoder, BAD)

    def value(name: str, **labels: str) -> float | None:
        return decoder._metrics.registry.get_sample_value(name, {"model_name": "m", **labels})

    assert value("numaserve_images_total", pixels="decoded") == 2
    assert value("numaserve_images_total", pixels="found") == 2
    assert value("numaserve_image_decode_seconds_count") == 2
    assert (value("numaserve_image_decode_seconds_sum") or 0) > 0


async def test_a_bad_image_has_a_problem_in_its_place_and_the_others_have_pictures(decoder: ImageDecoder) -> None:
    first, bad, same, large, second = await answers(decoder, encoded(), BAD, BAD, "A" * (1 << 21), encoded(1))
    assert isinstance(first, Picture) and isinstance(second, Picture)
    assert problem_of(bad) == problem_of(same)
    code, message = problem_of(bad)
    assert code == "invalid_image" and "format is unknown" in message
    code, message = problem_of(large)
    assert code == "image_too_large" and "bytes; the limit is 1048576 bytes. Send a smaller" in message


async def test_a_text_that_is_too_long_is_refused_before_it_is_read(
    decoder: ImageDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr("numaserve.server.images.decoder.digest_of", lambda text: read.append(text) or digest_of(text))
    large, picture = await answers(decoder, "A" * 2 * LIMITS.file_bytes, encoded())
    assert problem_of(large)[0] == "image_too_large"
    assert isinstance(picture, Picture)
    assert read == [encoded()]


async def test_the_problem_with_an_image_is_found_again_in_its_scope_alone(decoder: ImageDecoder) -> None:
    (bad,) = await answers(decoder, BAD)
    for pid in pids(decoder):
        os.kill(pid, signal.SIGSTOP)  # nothing can be decoded
    (again,) = await answers(decoder, BAD, client=OTHER)
    assert again is bad
    waiting = asyncio.create_task(answers(decoder, BAD, scope=CacheScope("group")))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()


async def test_a_client_that_blocks_a_process_does_not_stop_others(decoder: ImageDecoder) -> None:
    await decode(decoder, encoded(1))
    next_one = decoder._idle[-1]._process.pid
    os.kill(next_one, signal.SIGSTOP)
    blocked = [asyncio.create_task(decode(decoder, encoded(salt))) for salt in (2, 3, 4)]
    await asyncio.sleep(0.05)
    for salt in (5, 6, 7):
        await decode(decoder, encoded(salt), client=OTHER)
    assert not any(task.done() for task in blocked)
    os.kill(next_one, signal.SIGCONT)
    for (picture,), salt in zip(await asyncio.gather(*blocked), (2, 3, 4), strict=True):
        assert pixels(decoder, picture) == to_tiles(in_file(pattern(90, 70, salt=salt)), SETTINGS, LIMITS)[1]


async def test_requests_of_a_client_decode_the_same_image_once(decoder: ImageDecoder) -> None:
    for pid in pids(decoder):
        os.kill(pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(decode(decoder, encoded())) for _ in range(3)]
    await asyncio.sleep(0.05)
    tasks[0].cancel()  # the next one takes over
    for pid in pids(decoder):
        os.kill(pid, signal.SIGCONT)
    (second,), (third,) = await asyncio.gather(*tasks[1:])
    assert second is third
    assert not decoder._in_work


async def test_a_process_that_was_killed_is_replaced(decoder: ImageDecoder) -> None:
    await decode(decoder, encoded(1))
    for pid in pids(decoder):
        os.kill(pid, signal.SIGKILL)
    (picture,) = await decode(decoder, encoded(2))
    assert pixels(decoder, picture) == to_tiles(in_file(pattern(90, 70, salt=2)), SETTINGS, LIMITS)[1]


async def test_a_full_store_refuses_a_request_whole_and_frees_with_its_pictures(decoder: ImageDecoder) -> None:
    held = [await decode(decoder, encoded(salt)) for salt in range(10)]
    with pytest.raises(QueueFull, match="image store is full"):
        await decode(decoder, encoded(20), encoded(21))
    await decode(decoder, encoded(22), client=OTHER)
    del held
    await decode(decoder, encoded(20), encoded(21))


async def test_pictures_of_earlier_requests_take_half_of_the_store(decoder: ImageDecoder) -> None:
    for salt in range(20):
        await decode(decoder, encoded(salt))
    with decoder._store.reserve("x", 1):
        assert len(decoder._store._owners) - 1 <= TILES // 2


async def test_a_request_that_is_cancelled_leaves_nothing(decoder: ImageDecoder) -> None:
    for pid in pids(decoder):
        os.kill(pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(decode(decoder, encoded(salt))) for salt in (1, 2)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for pid in pids(decoder):
        os.kill(pid, signal.SIGCONT)
    await decode(decoder, encoded(3))  # after the piece that had begun
    with decoder._store.reserve("x", 1):
        assert len(decoder._store._owners) == 1 + 5


async def test_nothing_is_decoded_after_the_end(decoder: ImageDecoder) -> None:
    os.kill(decoder._idle[-1]._process.pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(decode(decoder, encoded(salt))) for salt in (1, 2)]
    await asyncio.sleep(0.05)
    decoder.close()
    for task in waiting:
        with pytest.raises(NotReady, match="shutting down"):
            await task
    with pytest.raises(NotReady):
        await decode(decoder, encoded())


def test_a_text_in_slices_is_the_text() -> None:
    text = "abc" * 300_000
    assert digest_of(text) == hashlib.sha256(text.encode()).digest()
    assert b"".join(slices(text)) == text.encode()
    assert max(map(len, slices(text))) < len(text)
    assert b"".join(slices("aä☠\ud800b")) == b"a???b"


def test_the_server_s_process_does_not_import_pillow() -> None:
    code = "import sys, numaserve.server.images.decoder, numaserve.server.images.store; print('PIL' in sys.modules)"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "False\n"
