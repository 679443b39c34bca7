"""The exchange with the process that decodes images.

A piece of work is a byte that says what to do with the image, and its text in base64. The answer is a line of JSON and
the pixels of the tiles.
"""

import msgspec
from numaserve.server.images.types import ProblemCode
from numaserve.workers.interface.images import ImageInput

SPLIT, WHOLE = b"s", b"w"  # as the model's processor makes images, or with few details


class Answer(msgspec.Struct, omit_defaults=True):
    """The head of an answer: the layout of an image, or the reason why it cannot be used."""

    rows: int = 0
    cols: int = 0
    width: int = 0  # of a tile, in pixels
    height: int = 0
    problem: ProblemCode | None = None
    message: str = ""


def encode(answer: Answer, tiles: list[bytes]) -> bytes:
    """Return the bytes of an answer."""
    return b"".join((msgspec.json.encode(answer), b"\n", *tiles))


def decode(data: bytes, settings: ImageInput) -> tuple[Answer, list[memoryview]]:
    """Return the head and the tiles of an answer. Raises `ValueError` unless its parts fit together, and the model
    takes tiles of this size.

    An attacker may control the process, so nothing of the answer is trusted.
    """
    end = data.index(b"\n") + 1
    answer = msgspec.json.decode(data[:end], type=Answer)
    pixels = memoryview(data)[end:]
    if answer.problem:
        if len(pixels):
            raise ValueError(f"{len(pixels)} bytes of an image with a problem")
        return answer, []
    settings.sizes.grid(answer.width, answer.height)
    tiles, tile_bytes = answer.rows * answer.cols + 1, answer.width * answer.height * len(settings.mean)
    if min(answer.rows, answer.cols) < 0 or len(pixels) != tiles * tile_bytes:
        raise ValueError(f"{len(pixels)} bytes for {answer.rows} x {answer.cols} tiles of {tile_bytes} bytes")
    return answer, [pixels[start : start + tile_bytes] for start in range(0, len(pixels), tile_bytes)]
