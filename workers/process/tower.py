"""The vision tower of a rank: its runs make features of tiles of images, which steps read from the feature pool."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.images import ImageInput
from numaserve.workers.interface.protocol import Launch, OperationTerms, SamplingParams, SlotInit, TowerWork
from numaserve.workers.layers.vision import FEATURES, Tower
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.rank_program import RankProgram, RankWeights
from numaserve.workers.process.tower_inputs import Pixels, make_inputs
from numaserve.workers.program.cost import StepWork, of_whole
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.parts import joined
from numaserve.workers.program.slots import slot_settings

Bits = npt.NDArray[np.uint16]  # of bf16


class _Begun(NamedTuple):
    """A run that has parts left."""

    tile: int
    next_part: int


class TowerRunner:
    """Runs the tower for tiles of the image store. One tile is a step of its Program, in one slot.

    A run may be in parts. What a part leaves to the next one lies in the Program's memory, so that one run at a time is
    begun.
    """

    def __init__(
        self, program: RankProgram, tower: Tower, images: ImageInput, pools: Sequence[tuple[str, Bits]], pixels: Pixels
    ):
        """Use the Program of a `tower`. `pools` have the features of tiles by the names of the rows that the Program
        keeps, [rows, hidden]. `pixels` are those of the image store, uint8 [tiles, the most bytes of a tile]."""
        self.program = program
        self._most, self._rows = tower.patches, images.rows_per_tile
        self._inputs = make_inputs(tower, images.table(), program.outside)
        self._pools = [(pool, program.outside.kept(name)) for name, pool in pools]
        self._places = len(pools[0][1]) // self._rows
        self._pixels = pixels
        self._parts, self.shares = program.parts, program.shares
        self._begun: _Begun | None = None
        self._sequence = np.array([[0, 0, tower.patches, 0, 0, 0]], np.int32)
        self._tokens, self._nothing = np.zeros(tower.patches, np.int32), np.empty(0, np.int32)
        self._init_slot()

    def _init_slot(self) -> None:
        tower, program = self.program, self.program.program
        program.init_slot(0, slot_settings(SlotInit(SamplingParams())))
        program.append_pages(0, list(range(tower.limits.num_pages)))

    @property
    def terms(self) -> list[OperationTerms]:
        """The terms of the tower's operations; a row is a tile, the largest if tiles differ."""
        return of_whole(self.program.terms, self._most)

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
        tiles, places, parts = len(self._pixels), self._places, len(self._parts)
        if not 0 <= work.tile < tiles:
            raise ValueError(f"the step has tile {work.tile} of an image, but the image store has {tiles} tiles")
        if not 0 <= work.place < places:
            raise ValueError(f"the step has image features for place {work.place} of a pool of {places} places")
        self._inputs.check(work)
        end = work.end or parts
        if not 0 <= work.begin < end <= parts:
            raise ValueError(f"the step has parts {work.begin} to {end} of a tower's run, which has {parts} parts")
        if work.begin and begun != (work.tile, work.begin):
            raise ValueError(f"the step has part {work.begin} for tile {work.tile} before the parts that precede it")
        return _Begun(work.tile, end) if end < parts else None

    def _run(self, work: TowerWork) -> None:
        parts = self._parts[work.begin : work.end or None]
        patches, rows = self._inputs.sizes(work)
        if work.begin == 0:
            self._inputs.fill(self._pixels[work.tile], work)
        self._sequence[0, 2] = patches
        self.program.program.step(self._sequence, self._tokens[:patches], self._nothing, part=joined(parts))
        if parts[-1] is self._parts[-1]:
            first = work.place * self._rows
            for pool, made in self._pools:
                pool[first : first + rows] = made[:rows]


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
    pools = [(name, served.given(name)) for name in (FEATURES, *tower.deep)]
    return TowerRunner(program, tower, images, pools, map_pixels(launch, images))


def map_pixels(launch: Launch, images: ImageInput) -> Pixels:
    """Return the pixels of the image store, read-only: uint8 [tiles, the most bytes of a tile]. None without a
    store."""
    shape = (launch.image_tiles if launch.image_fd >= 0 else 0, images.tile_bytes)
    if not shape[0]:
        return np.empty(shape, np.uint8)
    memory = mmap.mmap(launch.image_fd, launch.image_tiles * images.tile_bytes, prot=mmap.PROT_READ)
    return np.frombuffer(memory, np.uint8).reshape(shape)
