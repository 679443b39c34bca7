"""Loads adapters into their places in the matrices of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numaserve.kernels import AdapterWeights
from numaserve.workers.adapters.binding import Updated, count_matrices
from numaserve.workers.adapters.opened import Bits, bits_of, open_adapter
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import LoraAdapter
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.handles import TILE_ROWS, Adapters
from numaserve.workers.weights.packing import Gather
from numaserve.workers.weights.weights import Weights


def load_adapter(adapter: LoraAdapter, config: ModelConfig, part: RankPart, weights: Weights) -> int:
    """Put an adapter in its place in all matrices of a rank, and return the number of matrices of the checkpoint that
    it updates. A thread may call this while a step runs that does not name the place.

    Raises `OperatorError` for an adapter that cannot be applied whole, or is not the one that the front end has looked
    at; the place then holds no adapter.
    """
    place = adapter.number - 1
    memory = [(each, adapters, _native(weights, adapters)) for each, adapters in part.adapters()]
    for _, _, native in memory:
        native.clear(place)
    with open_adapter(Path(adapter.path), config, part.partition.settings) as opened:
        if opened.files.digest != adapter.digest:
            raise OperatorError(f"{adapter.path}: has changed since it was loaded first; load the adapter again")
        try:
            for parameter, adapters, native in memory:
                updated = opened.binding.get(parameter)
                if updated is not None:
                    native.set(place, *_values(part, adapters, updated, opened.files.where))
        except Exception:
            for _, _, native in memory:
                native.clear(place)
            raise
        return count_matrices(opened.binding)


def _native(weights: Weights, adapters: Adapters) -> AdapterWeights:
    native = weights.native(adapters)
    assert isinstance(native, AdapterWeights)  # noqa: S101  made for this handle
    return native


def _values(
    part: RankPart, adapters: Adapters, updated: Updated, where: str
) -> tuple[list[int], list[float], Bits, Bits]:
    """The ranks and scales of the parts of a matrix, and the values of their As and Bs, as `AdapterWeights` takes
    them."""
    ranks = [0 if update is None else update.rank for update in updated.updates]
    scales = [0.0 if update is None else update.scale for update in updated.updates]
    a = np.zeros((adapters.parts, adapters.rank, adapters.depth), np.uint16)
    for number, update in enumerate(updated.updates):
        if update is not None:
            a[number, : update.rank, : adapters.k] = _columns(bits_of(update.a, where), part, updated.declared)
    return ranks, scales, a, _blocks(part, adapters, updated, where)


def _columns(values: Bits, part: RankPart, parameter: MatrixParameter) -> Bits:
    """The columns that a rank has, of all columns of an A."""
    gather = Gather.for_rank(part, parameter.columns)
    if gather is not None:
        return gather.of(values)
    chosen = part.columns(parameter)
    return values[:, chosen.start : chosen.stop]


def _blocks(part: RankPart, adapters: Adapters, updated: Updated, where: str) -> Bits:
    """The values of the Bs in the order of the packed matrix' rows: [blocks, rank, 16]."""
    origin = part.packed_rows(updated.declared)
    rows, parts = (each.reshape(-1, TILE_ROWS) for each in (origin.rows, origin.parts))
    out = np.zeros((adapters.blocks, adapters.rank, TILE_ROWS), np.uint16)
    places = [(panel, number) for panel, numbers in enumerate(adapters.panels) for number in numbers]
    for number, update in enumerate(updated.updates):
        if update is None:
            continue
        blocks = [index for index, (_, of) in enumerate(places) if of == number]
        panels = [panel for panel, of in places if of == number]
        mine = np.isin(parts[panels], _parts_of(updated, number))
        values = bits_of(update.b, where)[np.where(mine, rows[panels], 0)]  # [blocks, 16, rank]
        out[blocks, : update.rank] = np.where(mine[..., None], values, np.uint16(0)).transpose(0, 2, 1)
    return out


def _parts_of(updated: Updated, number: int) -> Sequence[int]:
    """The parts of the matrix whose rows an update is for."""
    return [index for index, of in enumerate(updated.numbers) if of == number]
