"""The sizes of an image on its way to tiles, as transformers' processors of Idefics3 and SmolVLM compute them.

The source is transformers 5.24, `models/idefics3/image_processing_pil_idefics3.py`; the file of SmolVLM is the same.
The floating-point operations are the same in the same order, because a size is the integer part of a quotient.
"""

import math
from typing import NamedTuple

from numaserve.workers.interface.images import ImageInput

_LARGEST_EDGE = 4096  # of an image, whatever the settings (MAX_IMAGE_SIZE)


class Size(NamedTuple):
    """The size of an image in pixels."""

    width: int
    height: int

    @property
    def pixels(self) -> int:
        """The number of pixels."""
        return self.width * self.height


class Layout(NamedTuple):
    """The sizes of an image on its way: first one, then the other, which is cut into `rows` x `cols` tiles.

    An image of a single tile has neither rows nor columns.
    """

    first: Size
    second: Size
    rows: int
    cols: int


def lay_out(size: Size, settings: ImageInput, max_pixels: int) -> Layout:
    """Return the layout of an image of `size`, whose second size has at most `max_pixels`.

    Beyond `max_pixels` the result is the processor's for the largest smaller `longest_edge` that fits. One smaller edge
    for all images was rejected: an edge that fits a square is needlessly small for a wide image.
    """
    if not settings.split:
        return Layout(_resized(size, settings.longest_edge), Size(settings.tile, settings.tile), 0, 0)
    layouts = (_split(size, edge, settings.tile) for edge in range(settings.longest_edge, 0, -1))
    return next(each for each in layouts if each.second.pixels <= max_pixels)


def most_tiles(settings: ImageInput, max_pixels: int) -> int:
    """Return the maximum number of tiles of an image."""
    if not settings.split:
        return 1
    edge = _even(min(settings.longest_edge, _LARGEST_EDGE))  # the shorter one is rounded up
    grid = min(math.ceil(edge / settings.tile) ** 2, max_pixels // settings.tile**2)
    return grid + 1 if grid > 1 else 1


def _split(size: Size, edge: int, tile: int) -> Layout:
    """Return the layout of an image that is split (`resize_for_vision_encoder`, `split_images`)."""
    first = _resized(size, edge)
    aspect_ratio = first.width / first.height
    if first.width >= first.height:
        width = _to_tiles(first.width, tile)
        height = _to_tiles(int(width / aspect_ratio), tile)
    else:
        height = _to_tiles(first.height, tile)
        width = _to_tiles(int(height * aspect_ratio), tile)
    rows, cols = height // tile, width // tile
    return Layout(first, Size(width, height), *((rows, cols) if rows * cols > 1 else (0, 0)))


def _to_tiles(edge: int, tile: int) -> int:
    """Return `edge`, rounded up to whole tiles; transformers fails where rounding has made an edge 0."""
    return max(1, math.ceil(edge / tile)) * tile


def _resized(size: Size, edge: int) -> Size:
    """Return the size with `edge` as the longest edge (`get_resize_output_image_size`)."""
    width, height = size
    aspect_ratio = width / height
    if width >= height:
        width, height = edge, _even(int(edge / aspect_ratio))
    else:
        width, height = _even(int(edge * aspect_ratio)), edge
    width, height = max(width, 1), max(height, 1)
    aspect_ratio = width / height
    if width >= height and width > _LARGEST_EDGE:
        width, height = _LARGEST_EDGE, int(_LARGEST_EDGE / aspect_ratio)
    elif height > width and height > _LARGEST_EDGE:
        width, height = int(_LARGEST_EDGE * aspect_ratio), _LARGEST_EDGE
    return Size(max(width, 1), max(height, 1))


def _even(edge: int) -> int:
    return edge + edge % 2
