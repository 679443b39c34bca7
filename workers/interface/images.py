"""Image input of a model: the settings of its image processor, and the tokens that stand for an image."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Channels = tuple[float, float, float]  # red, green, blue
# The texts of special tokens around the placeholders of an image; "plain": the chat template writes them all.
ImageText = Literal["plain", "idefics3", "pixtral", "llama4"]
_FEW_ROWS = 64  # of features of an image whose details do not matter
_FEWEST_FILLED = 70  # rows of features, the fewest for which the processor of Gemma 4 has a setting


class Tiles(msgspec.Struct, frozen=True, tag="tiles"):
    """The sizes of images that become square tiles of one size, and the whole image as one of these."""

    side: int  # pixels
    longest_edge: int  # of the whole image before it is split; 0: it becomes a tile at once
    split: bool  # whether an image is split into tiles
    rows: int  # of features of a tile

    @property
    def pixels(self) -> int:
        """The pixels of a tile."""
        return self.side**2

    @property
    def smallest(self) -> int:
        """The pixels of the smallest image."""
        return self.pixels

    @property
    def least_rows(self) -> int:
        """The rows of features of the smallest image."""
        return self.rows

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the rows and columns of the grid of features of a tile of this size. Raises `ValueError` for a size
        that no tile has."""
        if width != self.side or height != self.side:
            raise ValueError(f"a tile has {self.side} x {self.side} pixels, not {width} x {height}")
        return isqrt(self.rows), isqrt(self.rows)

    @property
    def shape(self) -> str:
        """The shape of a tile, for the operator."""
        return f"{self.side} x {self.side} pixels"

    @property
    def described(self) -> dict[str, int]:
        """The sizes for the operator, by name."""
        return {"tile": self.side, "tile_tokens": self.rows}

    def low(self) -> Tiles:
        """The sizes of images whose details do not matter."""
        return msgspec.structs.replace(self, split=False)

    def within(self, pixels: int) -> Tiles:
        """The sizes where an image has at most as many pixels: those of a tile do not change."""
        return self


class Canvas(Tiles, frozen=True, tag="canvas"):
    """The sizes of images that are put on a black canvas of up to `tiles` square tiles, in any number of rows and
    columns, and of the whole image as one more tile."""

    tiles: int

    @classmethod
    def of(cls, side: int, rows: int, tiles: int) -> Canvas:
        """Return the sizes for tiles of `rows` features."""
        return cls(side, side * tiles, tiles > 1, rows, tiles)

    def low(self) -> Canvas:
        """See `Tiles`."""
        return self.of(self.side, self.rows, 1)


class Grid(msgspec.Struct, frozen=True, tag="grid"):
    """The sizes of images that are one tile each, of any number of rows and columns of squares. A square becomes a row
    of features."""

    square: int  # pixels of a side
    least_pixels: int
    pixels: int  # the most of a tile
    fills: bool = False  # an image becomes about as large as the largest one, however small it is

    @property
    def rows(self) -> int:
        """The rows of features of the largest tile."""
        return self.pixels // self.square**2

    @property
    def smallest(self) -> int:
        """The pixels of the smallest image."""
        return max(self.least_pixels, self.square**2)

    @property
    def least_rows(self) -> int:
        """The rows of features of the smallest image."""
        return self.smallest // self.square**2

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the rows and columns of the grid of features of a tile of this size. Raises `ValueError` for a size
        that no tile has."""
        columns, more = divmod(width, self.square)
        rows, rest = divmod(height, self.square)
        if more or rest or not 0 < rows * columns <= self.rows:
            raise ValueError(
                f"a tile has up to {self.rows} squares of {self.square} pixels, not {width} x {height} pixels"
            )
        return rows, columns

    @property
    def shape(self) -> str:
        """The shape of a tile, for the operator."""
        return f"up to {self.pixels} pixels"

    @property
    def described(self) -> dict[str, int]:
        """The sizes for the operator, by name."""
        return {"square": self.square, "max_tokens": self.rows}

    def low(self) -> Grid:
        """The sizes of images whose details do not matter."""
        low = _FEWEST_FILLED * self.square**2 if self.fills else self.smallest
        return msgspec.structs.replace(self, pixels=min(self.pixels, low))

    def within(self, pixels: int) -> Grid:
        """The sizes where an image has at most as many pixels."""
        return msgspec.structs.replace(self, pixels=min(self.pixels, pixels))


class Fitted(Grid, frozen=True, kw_only=True, tag="fitted"):
    """The sizes of images that are one tile each and keep their size unless an edge has more than `longest_edge`
    pixels. Edges are rounded up to whole squares."""

    longest_edge: int  # pixels

    @classmethod
    def within_edge(cls, square: int, longest_edge: int) -> Fitted:
        """Return the sizes with no other bound than the longest edge."""
        return cls(square, square**2, (-(-longest_edge // square) * square) ** 2, longest_edge=longest_edge)

    def low(self) -> Fitted:
        """See `Grid`. The processors of such images have no least size, so it is the usual one of other models."""
        return msgspec.structs.replace(self, pixels=min(self.pixels, _FEW_ROWS * self.square**2))


class Padded(Grid, frozen=True, kw_only=True, tag="padded"):
    """The sizes of images that are one tile each, and that keep their size unless they have more than `patches`, or an
    edge has more than `longest`. They lie at the top left of black squares."""

    patch: int  # pixels of a side
    patches: int
    longest: int  # patches

    @classmethod
    def of(cls, patch: int, factor: int, patches: int, longest: int) -> Padded:
        """Return the sizes for squares of `factor` x `factor` patches, with no other bounds. Squares that are not full
        add less than the squares of two of the longest edges."""
        square, squares = patch * factor, patches // factor**2 + longest
        return cls(square, square**2, squares * square**2, patch=patch, patches=patches, longest=longest)

    def low(self) -> Padded:
        """See `Fitted`."""
        return msgspec.structs.replace(self, pixels=min(self.pixels, _FEW_ROWS * self.square**2))


class Widened(Grid, frozen=True, tag="widened"):
    """The sizes of images that are one tile each, and that are enlarged first where an edge is shorter than a
    square."""


class Frame(msgspec.Struct, frozen=True):
    """The text around the rows of features of an image, where a model's processor writes it."""

    begin: int  # the id of the token before the rows
    end: int  # of the token after them
    around: str = ""  # the text before and after both
    marks: bool = False  # chat templates write the first token for an image, not the placeholder


@dataclass(frozen=True)
class ImageInput:
    """The settings of an image processor, and the rows of features that a tile becomes.

    An image becomes tiles, uint8 [height, width, 3], RGB. The rows of features of a tile take the places of as many
    tokens `token` of the prompt.
    """

    sizes: Tiles | Canvas | Grid | Fitted | Padded | Widened
    resample: int  # Pillow's number of the filter
    do_resize: bool
    rescale: float  # the factor of a byte
    mean: Channels
    std: Channels
    token: int  # the id of the placeholder
    text: ImageText = "plain"
    in_bf16: bool = False  # the processor computes in bf16
    frame: Frame | None = None
    # Tokens of an image see later ones of the same image: its rows are whole in a step, and no sequence goes on within
    # them.
    whole: bool = False

    @property
    def rows_per_tile(self) -> int:
        """The rows of features of a tile, the most if tiles differ."""
        return self.sizes.rows

    @property
    def tile_bytes(self) -> int:
        """Memory of the pixels of a tile, the most if tiles differ."""
        return self.sizes.pixels * len(self.mean)

    def low(self) -> ImageInput:
        """The settings for images whose details do not matter."""
        return replace(self, sizes=self.sizes.low())

    def within(self, pixels: int) -> ImageInput:
        """The settings where an image has at most as many pixels, after it is resized."""
        return replace(self, sizes=self.sizes.within(pixels))

    def table(self) -> npt.NDArray[np.float32]:
        """Return the value of each byte of each channel, fp32 [3, 256].

        transformers rescales in fp64, rounds to fp32, and normalizes in fp32, or does all in bf16; the values are the
        same bits.
        """
        # numpy takes a tenth of a second, and most readers of these settings need no table.
        import numpy as np  # noqa: PLC0415

        mean, std = (np.array(each, dtype=np.float32)[:, None] for each in (self.mean, self.std))
        if self.in_bf16:
            scaled = _in_bf16(np.arange(256, dtype=np.float32) * np.float32(self.rescale))
            return _in_bf16(_in_bf16(scaled - _in_bf16(mean)) / _in_bf16(std))
        rescaled = (np.arange(256, dtype=np.float64) * self.rescale).astype(np.float32)
        values: npt.NDArray[np.float32] = (rescaled - mean) / std
        return values

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of all settings, which is a part of the digest of each tile."""
        return hashlib.sha256(repr(astuple(self)).encode()).digest()


def _in_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return finite values rounded to bf16, half to even, as fp32 of any shape."""
    bits = values.view("u4")
    rounded: npt.NDArray[np.float32] = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype("u4").view("f4")
    return rounded
