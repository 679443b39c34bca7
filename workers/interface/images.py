"""Image input of a model: the settings of its image processor, and the tokens that stand for an image."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Channels = tuple[float, float, float]  # red, green, blue


@dataclass(frozen=True)
class ImageInput:
    """The settings of an image processor, and the rows of features that a tile becomes.

    An image becomes tiles of `tile` x `tile` pixels, uint8 [tile, tile, 3], RGB. A tile has `rows_per_tile` rows of
    features, which take the places of as many tokens `token` of the prompt.
    """

    tile: int  # pixels of a side
    longest_edge: int  # of the whole image before it is split
    split: bool  # whether an image is split into tiles
    resample: int  # Pillow's number of the filter
    do_resize: bool
    rescale: float  # the factor of a byte
    mean: Channels
    std: Channels
    rows_per_tile: int
    token: int  # the id of the placeholder

    @property
    def tile_bytes(self) -> int:
        """Memory of the pixels of a tile."""
        return self.tile * self.tile * len(self.mean)

    def table(self) -> npt.NDArray[np.float32]:
        """Return the value of each byte of each channel, fp32 [3, 256].

        transformers rescales in fp64, rounds to fp32, and normalizes in fp32; the values are the same bits.
        """
        # numpy takes a tenth of a second, and most readers of these settings need no table.
        import numpy as np  # noqa: PLC0415

        rescaled = (np.arange(256, dtype=np.float64) * self.rescale).astype(np.float32)
        mean, std = (np.array(each, dtype=np.float32)[:, None] for each in (self.mean, self.std))
        values: npt.NDArray[np.float32] = (rescaled - mean) / std
        return values

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of all settings, which is a part of the digest of each tile."""
        return hashlib.sha256(repr(astuple(self)).encode()).digest()
