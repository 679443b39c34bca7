"""The exchange with the process that decodes images.

A piece of work is a byte that says what to do with the image, and its text in base64. The answer is a line of JSON and
the pixels of the tiles.
"""

import msgspec
from numaserve.server.images.types import ProblemCode

SPLIT, WHOLE = b"s", b"w"  # as the model's processor splits images, or into a single tile


class Answer(msgspec.Struct, omit_defaults=True):
    """The head of an answer: the layout of an image, or the reason why it cannot be used."""

    rows: int = 0
    cols: int = 0
    problem: ProblemCode | None = None
    message: str = ""


def encode(answer: Answer, tiles: list[bytes]) -> bytes:
    """Return the bytes of an answer."""
    return b"".join((msgspec.json.encode(answer), b"\n", *tiles))


def decode(data: bytes, tile_bytes: int) -> tuple[Answer, list[memoryview]]:
    """Return the head and the tiles of an answer. Raises `ValueError` unless its parts fit together.

    An attacker may control the process, so nothing of the answer is trusted.
    """
    end = data.index(b"\n") + 1
    answer = msgspec.json.decode(data[:end], type=Answer)
    pixels = memoryview(data)[end:]
    tiles = 0 if answer.problem else answer.rows * answer.cols + 1
    if min(answer.rows, answer.cols) < 0 or len(pixels) != tiles * tile_bytes:
        raise ValueError(f"{len(pixels)} bytes for {answer.rows} x {answer.cols} tiles of {tile_bytes} bytes")
    return answer, [pixels[start : start + tile_bytes] for start in range(0, len(pixels), tile_bytes)]
