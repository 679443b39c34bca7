"""The sizes of an image on its way to tiles, as transformers' image processors compute them.

The sources are transformers 5.24, `models/idefics3/image_processing_pil_idefics3.py` for tiles (the file of SmolVLM is
the same), `models/qwen2_vl/image_processing_pil_qwen2_vl.py` for grids,
`models/paddleocr_vl/image_processing_pil_paddleocr_vl.py` for those that enlarge short edges first,
`models/pixtral/image_processing_pil_pixtral.py` for those that only have a longest edge,
`models/gemma4/image_processing_pil_gemma4.py` for grids that images fill,
`models/kimi_k25/image_processing_kimi_k25.py` for squares that are not full, and
`models/llama4/image_processing_llama4.py` for canvases. The floating-point operations are the same in the same order,
because a size is the integer part of a quotient.
"""

import math
import struct
from typing import NamedTuple

from numaserve.workers.interface.images import Canvas, Fitted, Grid, ImageInput, Padded, Tiles, Widened

_LARGEST_EDGE = 4096  # of an image that becomes tiles, whatever the settings (MAX_IMAGE_SIZE)
_LARGEST_RATIO = 200  # of the edges of an image that becomes a grid


class UnsupportedSize(ValueError):
    """The size of an image that the model's processor refuses; the message is for the client."""


class Size(NamedTuple):
    """The size of an image in pixels."""

    width: int
    height: int

    @property
    def pixels(self) -> int:
        """The number of pixels."""
        return self.width * self.height


class Layout(NamedTuple):
    """The sizes of an image on its way: one after the other, of which the last is cut into `rows` x `cols` tiles of the
    size `tile`.

    An image of a single tile has neither rows nor columns. With a `canvas`, the image of the last size lies at the top
    left of a black one, which is cut instead; the tile of the whole image is then made of the image before all sizes.
    """

    sizes: tuple[Size, ...]
    tile: Size
    rows: int = 0
    cols: int = 0
    canvas: Size | None = None


def lay_out(size: Size, settings: ImageInput, max_pixels: int) -> Layout:
    """Return the layout of an image of `size`, whose last size has at most `max_pixels`. Raises `UnsupportedSize`."""
    sizes = settings.sizes
    if isinstance(sizes, Fitted):
        return _fitted(size, sizes)
    if isinstance(sizes, Padded):
        return _padded(size, sizes)
    if isinstance(sizes, Canvas):
        return _on_canvas(size, sizes, max_pixels)
    if not isinstance(sizes, Grid):
        return _in_tiles(size, sizes, max_pixels)
    return _filling(size, sizes) if sizes.fills else _in_grid(size, sizes)


def most_tiles(settings: ImageInput, max_pixels: int) -> int:
    """Return the maximum number of tiles of an image."""
    sizes = settings.sizes
    if isinstance(sizes, Grid) or not sizes.split:
        return 1
    if isinstance(sizes, Canvas):
        grid = _canvas_tiles(sizes, max_pixels)
        return grid + 1 if grid > 1 else 1
    edge = _even(min(sizes.longest_edge, _LARGEST_EDGE))  # the shorter one is rounded up
    grid = min(math.ceil(edge / sizes.side) ** 2, max_pixels // sizes.pixels)
    return grid + 1 if grid > 1 else 1


def _in_grid(size: Size, sizes: Grid) -> Layout:
    """Return the layout of an image of whole squares (`smart_resize`). The bounds of its pixels are within the server's
    limit."""
    square = sizes.square
    width, height = _widened(size, square) if isinstance(sizes, Widened) else size
    ratio = max(width, height) / min(width, height)
    if ratio > _LARGEST_RATIO:
        raise UnsupportedSize(
            f"One edge of the image is {ratio:.0f} times as long as the other; the limit is {_LARGEST_RATIO}. Crop the"
            " image."
        )
    high, wide = round(height / square) * square, round(width / square) * square
    if high * wide > sizes.pixels:
        beta = math.sqrt((height * width) / sizes.pixels)
        high, wide = (max(square, math.floor(each / beta / square) * square) for each in (height, width))
    elif high * wide < sizes.least_pixels:
        beta = math.sqrt(sizes.least_pixels / (height * width))
        high, wide = (math.ceil(each * beta / square) * square for each in (height, width))
    if high * wide > sizes.pixels:
        raise UnsupportedSize(
            f"The image has {size.width} x {size.height} pixels. The model resizes it to {wide} x {high}, and the limit"
            f" is {sizes.pixels} pixels. Send an image whose edges differ less."
        )
    return Layout((Size(wide, high),), Size(wide, high))


def _widened(size: Size, square: int) -> Size:
    """Return the size where no edge is shorter than a square."""
    width, height = size
    if height < square:
        width, height = round((width * square) / height), square
    if width < square:
        width, height = square, round((height * square) / width)
    return Size(width, height)


def _fitted(size: Size, sizes: Fitted) -> Layout:
    """Return the layout of an image that keeps its size where it fits. The bound of its pixels is within the server's
    limit; beyond it, edges are chosen as for tiles."""
    found = (_rounded_up(size, edge, sizes.square) for edge in range(sizes.longest_edge, 0, -1))
    whole = next(each for each in found if each.pixels <= sizes.pixels)
    return Layout((whole,), whole)


def _rounded_up(size: Size, edge: int, square: int) -> Size:
    """Return the size of whole squares around an image of at most `edge` (`get_resize_output_image_size`)."""
    width, height = size
    ratio = max(height / edge, width / edge)
    if ratio > 1:
        width, height = math.floor(width / ratio), math.floor(height / ratio)
    return Size(_to_tiles(width, square), _to_tiles(height, square))


def _padded(size: Size, sizes: Padded) -> Layout:
    """Return the layout of an image at the top left of black squares. The bound of its pixels is within the server's
    limit; beyond it, the number of patches is chosen as an edge is for tiles, and an edge fits into a row of
    squares."""
    most = min(sizes.patches, sizes.pixels // sizes.patch**2)
    longest = min(sizes.longest, sizes.rows * sizes.square // sizes.patch)
    found = (_shrunk(size, sizes.patch, patches, longest) for patches in range(most, 0, -1))
    layouts = ((inner, Size(*(_to_tiles(edge, sizes.square) for edge in inner))) for inner in found)
    inner, whole = next(each for each in layouts if each[1].pixels <= sizes.pixels)
    return Layout((inner,), whole, canvas=whole)


def _shrunk(size: Size, patch: int, patches: int, longest: int) -> Size:
    """Return the size of an image of at most that number of `patches`, and of `longest` ones in an edge
    (`navit_resize`)."""
    width, height = size
    count = max(1.0, height // patch) * max(1.0, width // patch)
    edge = longest * patch
    scale = min(1.0, math.sqrt(patches / count), edge / height, edge / width)
    return Size(*(min(max(1, int(each * scale)), edge) for each in size))


def _on_canvas(size: Size, sizes: Canvas, max_pixels: int) -> Layout:
    """Return the layout of an image on a black canvas of tiles. Beyond `max_pixels` the result is the processor's for
    the largest smaller number of tiles that fits."""
    side, (width, height) = sizes.side, size
    canvas = _best_canvas(size, side, _canvas_tiles(sizes, max_pixels))
    # An image is enlarged to a tile at most (`max_upscaling_size`).
    wide, high = (min(max(each, side), most) for each, most in zip(size, canvas, strict=True))
    by_width, by_height = wide / width, high / height  # `get_max_res_without_distortion`
    if by_width < by_height:
        inner = Size(wide, max(1, min(math.floor(height * by_width), high)))
    else:
        inner = Size(max(1, min(math.floor(width * by_height), wide)), high)
    rows, cols = canvas.height // side, canvas.width // side
    grid = (rows, cols) if rows * cols > 1 else (0, 0)
    return Layout((inner,), Size(side, side), *grid, canvas=canvas)


def _canvas_tiles(sizes: Canvas, max_pixels: int) -> int:
    return max(1, min(sizes.tiles, max_pixels // sizes.pixels))


def _best_canvas(size: Size, side: int, tiles: int) -> Size:
    """Return the canvas on which the image is made smaller the least, or else larger the least, and among those the
    first of the smallest ones (`find_supported_resolutions`, `get_best_fit`)."""
    by_ratio: dict[float, list[Size]] = {}
    for count in range(tiles, 0, -1):
        for rows in (each for each in range(1, count + 1) if count % each == 0):
            by_ratio.setdefault(rows / (count // rows), []).append(Size(count // rows * side, rows * side))
    canvases = [canvas for group in by_ratio.values() for canvas in group]
    scales = [min(_in_fp32(each.width / size.width), _in_fp32(each.height / size.height)) for each in canvases]
    enlarging = [each for each in scales if each >= 1]
    chosen = min(enlarging) if enlarging else max(scales)
    return min(
        (each for each, scale in zip(canvases, scales, strict=True) if scale == chosen), key=lambda each: each.pixels
    )


def _in_fp32(value: float) -> float:
    """Return a quotient of integers below 2^24 as torch computes it."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)


def _filling(size: Size, sizes: Grid) -> Layout:
    """Return the layout of an image of as many whole squares as there may be, which keeps the ratio of its edges
    (`get_aspect_ratio_preserving_size`)."""
    width, height, square = *size, sizes.square
    factor = math.sqrt(sizes.rows * square**2 / (height * width))
    high, wide = (math.floor(factor * each / square) * square for each in (height, width))
    if high == 0:
        high, wide = square, min(math.floor(width / height), sizes.rows) * square
    elif wide == 0:
        high, wide = min(math.floor(height / width), sizes.rows) * square, square
    return Layout((Size(wide, high),), Size(wide, high))


def _in_tiles(size: Size, sizes: Tiles, max_pixels: int) -> Layout:
    """Return the layout of an image of square tiles.

    Beyond `max_pixels` the result is the processor's for the largest smaller `longest_edge` that fits. One smaller edge
    for all images was rejected: an edge that fits a square is needlessly small for a wide image.
    """
    if not sizes.split:
        whole = Size(sizes.side, sizes.side)
        return Layout((_resized(size, sizes.longest_edge), whole) if sizes.longest_edge else (whole,), whole)
    layouts = (_split(size, edge, sizes.side) for edge in range(sizes.longest_edge, 0, -1))
    return next(each for each in layouts if each.sizes[-1].pixels <= max_pixels)


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
    grid = (rows, cols) if rows * cols > 1 else (0, 0)
    return Layout((first, Size(width, height)), Size(tile, tile), *grid)


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
