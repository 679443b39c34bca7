"""The vision tower of a rank: its runs make features of tiles of images, which steps read from the feature pool."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.images import ImageInput
from numaserve.workers.interface.protocol import Launch, OperationTerms, SamplingParams, SlotInit, TowerWork
from numaserve.workers.layers.vision import FEATURES, PATCHES
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.rank_program import Forward, RankProgram, RankWeights
from numaserve.workers.program.cost import of_whole
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.slots import slot_settings

Pixels = npt.NDArray[np.uint8]


class Tower(Forward, Protocol):
    """The layers of a tower. A tile of pixels becomes a square of patches, and these become rows of features."""

    @property
    def side(self) -> int:
        """Patches in a row of a tile."""

    @property
    def patches(self) -> int:
        """Patches of a tile."""


class TowerRunner:
    """Runs the tower for tiles of the image store. One tile is a step of its Program, in one slot."""

    def __init__(self, tower: RankProgram, side: int, images: ImageInput, pool: npt.NDArray[np.uint16], pixels: Pixels):
        """Use the Program `tower`, whose tiles have `side` x `side` patches. `pool` has the features of tiles as bits
        of bf16 [rows, hidden], and `pixels` are those of the image store, uint8 [tiles, tile, tile, 3]."""
        self.program = tower
        self._side, self._rows, self._table = side, images.rows_per_tile, images.table()
        self._patches, self._features = tower.outside.given(PATCHES), tower.outside.kept(FEATURES)
        self._pool, self._pixels = pool, pixels
        self._sequence = np.array([[0, 0, side * side, 0, 0, 0]], np.int32)
        self._tokens, self._nothing = np.zeros(side * side, np.int32), np.empty(0, np.int32)
        program = tower.program
        program.init_slot(0, slot_settings(SlotInit(SamplingParams())))
        program.append_pages(0, list(range(tower.limits.num_pages)))

    @property
    def terms(self) -> list[OperationTerms]:
        """The terms of the tower's operations; a row is a tile."""
        return of_whole(self.program.terms, self._side * self._side)

    def run(self, works: Sequence[TowerWork]) -> int:
        """Store the features of tiles in their places of the pool, and return the nanoseconds that this took.

        Raises `ValueError` for a tile or a place that does not exist, before any run.
        """
        begin, tiles, places = time.monotonic_ns(), len(self._pixels), len(self._pool) // self._rows
        for work in works:
            if not 0 <= work.tile < tiles:
                raise ValueError(f"the step has tile {work.tile} of an image, but the image store has {tiles} tiles")
            if not 0 <= work.place < places:
                raise ValueError(f"the step has image features for place {work.place} of a pool of {places} places")
        for work in works:
            self._fill(self._pixels[work.tile])
            self.program.program.step(self._sequence, self._tokens, self._nothing)
            first = work.place * self._rows
            self._pool[first : first + self._rows] = self._features[: self._rows]
        return time.monotonic_ns() - begin

    def _fill(self, pixels: Pixels) -> None:
        """Give the tower the values of a tile's patches, by channel, then row, then column."""
        side = self._side
        patch = len(pixels) // side
        whole = pixels[: side * patch, : side * patch]  # a remainder is left out, as by a convolution
        blocks = whole.reshape(side, patch, side, patch, -1).transpose(0, 2, 4, 1, 3)
        channels = np.arange(blocks.shape[2])[:, None, None]
        self._patches[:] = self._table[channels, blocks].reshape(self._patches.shape)


def make_tower(held: RankWeights, served: OutsideRows, node: NodeContext) -> TowerRunner | None:
    """Return the tower of a model, whose served Program has the rows `served`; None for a model without one."""
    launch, images, tower = held.launch, held.config.images, held.config.decoder.tower
    if images is None or tower is None or not launch.capacity.feature_tiles:
        return None
    pages = -(-tower.patches // PAGE_SIZE)
    limits = Capacity.of_program(tower.patches, 0, 1, pages, pages)
    # A quantized KV cache would lose precision and save nothing: one tile's keys and values are kept.
    settings = replace(launch.settings, kv_cache_dtype="bf16")
    program = RankProgram(held, tower, node, limits, settings=settings)
    return TowerRunner(program, tower.side, images, served.given(FEATURES), map_pixels(launch, images))


def map_pixels(launch: Launch, images: ImageInput) -> Pixels:
    """Return the pixels of the image store, read-only: uint8 [tiles, tile, tile, 3]. None without a store."""
    shape = (launch.image_tiles if launch.image_fd >= 0 else 0, images.tile, images.tile, 3)
    if not shape[0]:
        return np.empty(shape, np.uint8)
    memory = mmap.mmap(launch.image_fd, launch.image_tiles * images.tile_bytes, prot=mmap.PROT_READ)
    return np.frombuffer(memory, np.uint8).reshape(shape)
