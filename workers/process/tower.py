"""The vision tower of a rank: its runs make features of tiles of images, which steps read from the feature pool."""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.images import ImageInput
from numaserve.workers.interface.protocol import Launch, OperationTerms, SamplingParams, SlotInit, TowerWork
from numaserve.workers.layers.forward import Forward
from numaserve.workers.layers.vision import FEATURES, PATCHES
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.rank_program import RankProgram, RankWeights
from numaserve.workers.program.cost import StepWork, of_whole
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.parts import joined
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


class _Begun(NamedTuple):
    """A run that has parts left."""

    tile: int
    next_part: int


class TowerRunner:
    """Runs the tower for tiles of the image store. One tile is a step of its Program, in one slot.

    A run may be in parts. What a part leaves to the next one lies in the Program's memory, so that one run at a time is
    begun.
    """

    def __init__(self, tower: RankProgram, side: int, images: ImageInput, pool: npt.NDArray[np.uint16], pixels: Pixels):
        """Use the Program `tower`, whose tiles have `side` x `side` patches. `pool` has the features of tiles as bits
        of bf16 [rows, hidden], and `pixels` are those of the image store, uint8 [tiles, tile, tile, 3]."""
        self.program = tower
        self._side, self._rows, self._table = side, images.rows_per_tile, images.table()
        self._patches, self._features = tower.outside.given(PATCHES), tower.outside.kept(FEATURES)
        self._pool, self._pixels = pool, pixels
        self._parts, self.shares = tower.parts, tower.shares
        self._begun: _Begun | None = None
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

        Raises `ValueError` for a tile or a place that does not exist, or parts that do not follow those before, before
        any run.
        """
        begin, begun = time.monotonic_ns(), self._begun
        for work in works:
            begun = self._after(begun, work)
        for work in works:
            self._run(work)
            self._begun = self._after(self._begun, work)
        return time.monotonic_ns() - begin

    def _after(self, begun: _Begun | None, work: TowerWork) -> _Begun | None:
        """Return the run that has parts left after some work, given the run that has some before it."""
        tiles, places, parts = len(self._pixels), len(self._pool) // self._rows, len(self._parts)
        if not 0 <= work.tile < tiles:
            raise ValueError(f"the step has tile {work.tile} of an image, but the image store has {tiles} tiles")
        if not 0 <= work.place < places:
            raise ValueError(f"the step has image features for place {work.place} of a pool of {places} places")
        end = work.end or parts
        if not 0 <= work.begin < end <= parts:
            raise ValueError(f"the step has parts {work.begin} to {end} of a tower's run, which has {parts} parts")
        if work.begin and begun != (work.tile, work.begin):
            raise ValueError(f"the step has part {work.begin} for tile {work.tile} before the parts that precede it")
        return _Begun(work.tile, end) if end < parts else None

    def _run(self, work: TowerWork) -> None:
        parts = self._parts[work.begin : work.end or None]
        if work.begin == 0:
            self._fill(self._pixels[work.tile])
        self.program.program.step(self._sequence, self._tokens, self._nothing, part=joined(parts))
        if parts[-1] is self._parts[-1]:
            first = work.place * self._rows
            self._pool[first : first + self._rows] = self._features[: self._rows]

    def _fill(self, pixels: Pixels) -> None:
        """Give the tower the values of a tile's patches, by channel, then row, then column."""
        side, patch = self._side, math.isqrt(self._patches.shape[1] // len(self._table))
        whole = pixels[: side * patch, : side * patch]  # a remainder is left out, as by a convolution
        channels = whole.reshape(side, patch, side, patch, -1).transpose(4, 0, 2, 1, 3)
        parts = np.split(self._patches, len(self._table), axis=1)
        # One lookup for all channels takes four times as long: numpy then has two indices for each value.
        for values, blocks, part in zip(self._table, channels, parts, strict=True):
            part[:] = values.take(blocks.reshape(side * side, -1))


def make_tower(held: RankWeights, served: OutsideRows, node: NodeContext) -> TowerRunner | None:
    """Return the tower of a model, whose served Program has the rows `served`; None for a model without one."""
    launch, images, tower = held.launch, held.config.images, held.config.decoder.tower
    if images is None or tower is None or not launch.capacity.feature_tiles:
        return None
    pages = -(-tower.patches // PAGE_SIZE)
    limits = Capacity.of_program(tower.patches, 0, 1, pages, pages)
    # A quantized KV cache would lose precision and save nothing: one tile's keys and values are kept.
    settings = replace(launch.settings, kv_cache_dtype="bf16")
    work = StepWork([(0, tower.patches)], 0)
    program = RankProgram(held, tower, node, limits, settings=settings, in_parts=work)
    return TowerRunner(program, tower.side, images, served.given(FEATURES), map_pixels(launch, images))


def map_pixels(launch: Launch, images: ImageInput) -> Pixels:
    """Return the pixels of the image store, read-only: uint8 [tiles, tile, tile, 3]. None without a store."""
    shape = (launch.image_tiles if launch.image_fd >= 0 else 0, images.tile, images.tile, 3)
    if not shape[0]:
        return np.empty(shape, np.uint8)
    memory = mmap.mmap(launch.image_fd, launch.image_tiles * images.tile_bytes, prot=mmap.PROT_READ)
    return np.frombuffer(memory, np.uint8).reshape(shape)
