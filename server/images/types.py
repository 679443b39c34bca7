"""Decoded images, the limits of their decoding, and the error that refuses one."""

from dataclasses import dataclass
from typing import Literal

from numaserve.server.scheduler.images import Tile

ProblemCode = Literal["invalid_image", "image_too_large"]
SMALLER = "Send a smaller image."


@dataclass(frozen=True)
class Picture:
    """A decoded image: `rows` x `cols` tiles, row by row, and last the whole image as a tile.

    An image of a single tile has neither rows nor columns.
    """

    rows: int
    cols: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class ImageLimits:
    """The limits of the images of a request."""

    images: int
    file_bytes: int  # of an image file, without base64
    file_pixels: int  # of an image before it is resized
    pixels: int  # of an image after it is resized, without the tile of the whole image


class ImageProblem(Exception):
    """An image that cannot be used; the message is for the client."""

    def __init__(self, code: ProblemCode, message: str) -> None:
        """Store the error's `code` in the API."""
        super().__init__(message)
        self.code: ProblemCode = code


def too_many_bytes(nbytes: int, limits: ImageLimits) -> ImageProblem:
    """Return the error for an image file of `nbytes`."""
    message = f"The image has {nbytes} bytes; the limit is {limits.file_bytes} bytes. {SMALLER}"
    return ImageProblem("image_too_large", message)
