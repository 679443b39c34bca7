"""Files of attackers end in a clear error or right pixels, in the confined process as in a server."""

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest
from numaserve.server.confined.worker import BeyondLimits, ConfinedWorker
from numaserve.server.images.exchange import SPLIT, WHOLE, Answer, decode
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits
from numaserve.workers.interface.images import ImageInput
from PIL import Image

from tests.support.hostile_images import damaged, endless_scans, other_formats, too_large
from tests.support.image_files import SETTINGS, drawn_png, files, in_file, pattern, png, png_header

LIMITS = ImageLimits(images=9, file_bytes=1 << 20, file_pixels=65_535 * 4, pixels=4 * 64 * 64)
MIB = 1 << 20

Decode = Callable[[bytes], tuple[Answer, list[memoryview]]]


def confined(limits: ImageLimits = LIMITS, cpu_seconds: float = 20.0, memory_bytes: int = 512 * MIB) -> ConfinedWorker:
    return ConfinedWorker(
        "the image decoder",
        "numaserve.server.images.process",
        {"settings": msgspec.to_builtins(SETTINGS), "limits": asdict(limits)},
        max_bytes=1 << 24,
        cpu_seconds=cpu_seconds,
        seconds=120.0,
        memory_bytes=memory_bytes,
    )


def ask(worker: ConfinedWorker, text: bytes, head: bytes = SPLIT) -> bytes:
    return worker.ask_in_parts(1 + len(text), lambda: (head, text))


@pytest.fixture(scope="module")
def worker() -> Iterator[ConfinedWorker]:
    made = confined()
    yield made
    made.close()


@pytest.fixture
def decoded(worker: ConfinedWorker) -> Decode:
    return lambda data: decode(ask(worker, b64encode(data)), SETTINGS)


def problem(answer: Answer) -> tuple[str | None, str]:
    return answer.problem, answer.message


def test_every_format_has_the_same_pixels_in_the_confined_process(decoded: Decode) -> None:
    for name, data in files():
        layout, tiles = to_tiles(data, SETTINGS, LIMITS)
        answer, found = decoded(data)
        assert answer == Answer(layout.rows, layout.cols, *layout.tile), name
        assert found == tiles, name


def test_a_file_that_declares_gigapixels_is_refused_before_its_pixels_are_read(decoded: Decode) -> None:
    for name, data in too_large():
        answer, _ = decoded(data)
        assert answer.problem == "image_too_large", name
        assert "the limit is 262140 pixels. Send a smaller image." in answer.message, name


def test_a_damaged_file_is_invalid(decoded: Decode) -> None:
    for name, data in damaged():
        answer, _ = decoded(data)
        assert answer.problem == "invalid_image", (name, answer)
        assert "is damaged" in answer.message or "header" in answer.message, (name, answer)
        assert "0x" not in answer.message, (name, answer)  # an address of the process


def test_another_format_is_refused_by_its_name(decoded: Decode) -> None:
    for name, data in other_formats():
        answer, _ = decoded(data)
        assert problem(answer) == (
            "invalid_image",
            f"The image is in the format {name}; allowed are PNG, JPEG, WebP and GIF. Convert the image.",
        )


@pytest.mark.parametrize("data", [drawn_png(16, 0), drawn_png(16, 0, interlaced=True), in_file(pattern(9, 9, "I;16"))])
def test_grey_of_16_bits_is_refused_rather_than_white(decoded: Decode, data: bytes) -> None:
    answer, _ = decoded(data)
    message = "The image has 16 bits for a grey value; the limit is 8 bits. Convert the image to 8 bits."
    assert problem(answer) == ("invalid_image", message)


@pytest.mark.parametrize("data", [b"", b"words", b"<!DOCTYPE html>", bytes(1000)])
def test_what_is_no_image_is_refused(decoded: Decode, data: bytes) -> None:
    answer, _ = decoded(data)
    assert answer.problem == "invalid_image"
    assert "format is unknown; allowed are PNG, JPEG, WebP and GIF" in answer.message


@pytest.mark.parametrize("text", [b"?", b"AAA", b"AAAAA", b"AA==AA==", "ä".encode(), b"iVBO\0Rw0KGgo=", b"_-8="])
def test_what_is_no_base64_is_refused(worker: ConfinedWorker, text: bytes) -> None:
    answer, _ = decode(ask(worker, text), SETTINGS)
    assert answer.problem == "invalid_image"
    assert "The image is not valid base64" in answer.message


def test_base64_may_have_line_breaks(worker: ConfinedWorker, decoded: Decode) -> None:
    data = in_file(pattern(70, 90))
    text = b64encode(data)
    lines = b"\r\n".join(text[start : start + 76] for start in range(0, len(text), 76))
    assert decode(ask(worker, lines), SETTINGS) == decoded(data)


def test_pixels_and_bytes_are_allowed_up_to_their_limits() -> None:
    data = in_file(pattern(64, 64))
    at_limits = replace(LIMITS, file_pixels=64 * 64, file_bytes=len(data))
    for limits, expected in (
        (at_limits, None),
        (replace(at_limits, file_pixels=64 * 64 - 1), "The image has 64 x 64 pixels; the limit is 4095 pixels."),
        (
            replace(at_limits, file_bytes=len(data) - 1),
            f"The image has {len(data)} bytes; the limit is {len(data) - 1} bytes.",
        ),
    ):
        worker = confined(limits)
        answer, tiles = decode(ask(worker, b64encode(data)), SETTINGS)
        worker.close()
        if expected is None:
            assert tiles == to_tiles(data, SETTINGS, LIMITS)[1]
        else:
            assert problem(answer) == ("image_too_large", f"{expected} Send a smaller image.")


def test_an_image_that_is_not_split_is_one_tile(worker: ConfinedWorker) -> None:
    data = in_file(pattern(300, 90))
    answer, tiles = decode(ask(worker, b64encode(data), WHOLE), SETTINGS)
    assert answer == Answer(width=64, height=64)
    assert tiles == to_tiles(data, SETTINGS.low(), LIMITS)[1]


@pytest.mark.parametrize(("size", "grid"), [((1, 65_535), (4, 1)), ((65_535, 1), (1, 4)), ((1, 1), (2, 2))])
def test_thin_images_become_tiles(decoded: Decode, size: tuple[int, int], grid: tuple[int, int]) -> None:
    answer, tiles = decoded(in_file(Image.new("RGB", size, (1, 2, 3))))
    assert (answer.rows, answer.cols) == grid
    assert {bytes(tile) for tile in tiles} == {bytes((1, 2, 3)) * SETTINGS.sizes.pixels}


def test_the_process_itself_decodes_nothing() -> None:
    worker = confined(replace(LIMITS, file_pixels=1 << 24))
    ask(worker, b64encode(in_file(pattern(9, 9))))
    before = peak_kib(worker)
    answer, _ = decode(ask(worker, b64encode(in_file(Image.new("RGB", (4000, 4000))))), SETTINGS)
    assert answer.problem is None
    assert peak_kib(worker) - before < 4 * 4000 * 4000 // 1024 // 4  # its pixels are in the memory of a fork
    worker.close()


def peak_kib(worker: ConfinedWorker) -> int:
    status = Path(f"/proc/{worker._process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_a_file_that_takes_long_ends_at_the_limit_and_the_next_is_decoded() -> None:
    worker = confined(replace(LIMITS, file_pixels=1 << 24), cpu_seconds=0.5)
    with pytest.raises(BeyondLimits, match=r"the image decoder ran for more than 0\.5 s of processor time"):
        ask(worker, b64encode(endless_scans(4000, 4000)))
    answer, _ = decode(ask(worker, b64encode(in_file(pattern(9, 9)))), SETTINGS)
    assert answer.problem is None
    worker.close()


def test_a_file_that_takes_much_memory_is_too_large_and_the_next_is_decoded() -> None:
    worker = confined(replace(LIMITS, file_pixels=1 << 32), memory_bytes=300 * MIB)
    black = png(png_header(30_000, 30_000), (b"IDAT", zlib.compress(bytes(1 << 20))), (b"IEND", b""))
    answer, _ = decode(ask(worker, b64encode(black)), SETTINGS)
    message = "Decoding the image takes too much memory. Send a smaller image."
    assert problem(answer) == ("image_too_large", message)
    answer, _ = decode(ask(worker, b64encode(in_file(pattern(9, 9)))), SETTINGS)
    assert answer.problem is None
    worker.close()


@pytest.mark.parametrize(
    "data",
    [
        b'{"rows":2,"cols":2,"width":64,"height":64}\n' + bytes(4 * SETTINGS.tile_bytes),
        b'{"rows":-1,"cols":-1,"width":64,"height":64}\n' + bytes(2 * SETTINGS.tile_bytes),
        b'{"rows":1,"cols":1,"width":64,"height":64}\n' + bytes(SETTINGS.tile_bytes + 1),
        b'{"problem":"image_too_large"}\n' + bytes(SETTINGS.tile_bytes),
        b'{"width":32,"height":128}\n' + bytes(SETTINGS.tile_bytes),
        b'{"problem":"other"}\n',
        b'{"rows":1',
        b"\n",
        b"",
    ],
)
def test_an_answer_of_a_process_that_lies_is_noticed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data, SETTINGS)


def tiles_of(data: bytes, settings: ImageInput) -> int:
    return len(to_tiles(data, settings, LIMITS)[1])


def test_an_image_has_at_most_the_pixels_of_the_limit() -> None:
    for size in ((500, 500), (640, 360), (100, 640), (640, 30)):
        assert tiles_of(in_file(pattern(*size)), SETTINGS) <= LIMITS.pixels // SETTINGS.sizes.pixels + 1
