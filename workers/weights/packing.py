"""Copies rows of a checkpoint's tensors into packed matrices: unchanged, decoded, or as codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.parameters import Split
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.layers.stored import Stored
from numaserve.workers.weights.quantized.coded import CodedTensor, requantized
from numaserve.workers.weights.quantized.layouts import QuantizedMatrix
from numaserve.workers.weights.source import Floats, RawTensor, TensorSource, as_float32

Rows = npt.NDArray[np.int32]

# Layouts of blocks of 32 that the kernels read themselves, and the matrices that keep their codes.
_BLOCK = 32
_NATIVE_BLOCKS = {"q8_0": ("int8_group", "none"), "q4_0": ("int4", "none"), "q4_1": ("int4", "minima")}
_PANEL = 16
_DECODED_BYTES = 16 << 20  # of weights in fp32 decoded at a time: enough panels for all threads of a rank


@dataclass(frozen=True)
class Place:
    """The destination of rows: row i goes to row `dst_row` + i, in panels of 16 dealt to every `panel_stride`-th
    panel."""

    dst_row: int = 0
    first_col: int = 0  # of the tensor
    panel_stride: int = 1
    panel_offset: int = 0


@dataclass(frozen=True)
class Gather:
    """Columns of a tensor in another order: units of `width` columns."""

    units: Rows
    width: int

    @classmethod
    def for_rank(cls, part: RankPart, split: Split | None) -> Gather | None:
        """Return the order of a rank's columns; None where they are one range."""
        units = part.gathered(split)
        return None if split is None or units is None else cls(units, split.width)

    def of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the chosen columns of [rows, columns]."""
        chosen = values.reshape(len(values), -1, self.width)[:, self.units]
        return np.ascontiguousarray(chosen.reshape(len(values), -1))

    def of_codes(self, coded: CodedTensor) -> CodedTensor:
        """Return the chosen columns of a quantized tensor. Groups become so narrow that a unit consists of some."""
        group = gcd(coded.group, self.width)
        times, each = coded.group // group, self.width // group

        def scales(values: Floats) -> Floats:
            return Gather(self.units, each).of(np.repeat(values, times, axis=1)[:, : coded.codes.shape[1] // group])

        offsets = None if coded.offsets is None else scales(coded.offsets)
        return replace(coded, codes=self.of(coded.codes), scales=scales(coded.scales), offsets=offsets, group=group)


class Packer:
    """Packs on the threads of `team`. Raises `OperatorError` for tensors that are damaged."""

    def __init__(self, source: TensorSource, team: Team) -> None:
        self._source, self._team = source, team

    def pack(
        self,
        matrix: PackedMatrix,
        module: str,
        rows: Rows,
        place: Place,
        *,
        stored: Stored | None,
        shape: tuple[int, int],
        gather: Gather | None = None,
    ) -> None:
        """Pack `rows` of the weight of `module`, which has `shape` and is in the file as `stored` says."""
        if matrix.k == 0 or len(rows) == 0:  # a rank without heads has nothing to read
            return
        if stored is None or (gather is None and _reads_blocks(matrix, stored, place)):
            tensor = self._source.tensor(f"{module}.weight")
            if len(tensor.shape) != len(shape):  # of a convolution, or of a single row
                tensor = replace(tensor, shape=shape)
            if gather is not None:
                self._pack_values(matrix, _gathered(tensor, gather), rows, place)
            elif tensor.turned:
                self._pack_values(matrix, *_upright(tensor, rows, place, matrix.k))
            else:
                self._pack_values(matrix, tensor, rows, place)
            self._source.release(tensor)
            return
        quantized = QuantizedMatrix(self._source, module, stored, shape)
        for part, chosen, where in _portions(rows, shape[1], place, apart=stored.layout == "gpt_oss"):
            decoded = quantized.decode(part)
            if matrix.format == "bf16":
                values = decoded.dequantized()
                values = values if gather is None else gather.of(values)
                self._pack_values(matrix, _raw(decoded.name, values), chosen, where)
            else:
                self._pack_codes(matrix, decoded if gather is None else gather.of_codes(decoded), chosen, where)
        quantized.release()

    def pack_turned(
        self,
        matrix: PackedMatrix,
        module: str,
        blocks: Sequence[range],
        *,
        stored: Stored | None,
        shape: tuple[int, int],
    ) -> None:
        """Pack the transposes of some blocks of rows of that weight, one below the other. Codes are kept if their
        scales allow it, otherwise rounded again."""
        tensor = self._source.tensor(f"{module}.weight") if stored is None else None
        quantized = None if stored is None else QuantizedMatrix(self._source, module, stored, shape)
        rows = np.arange(shape[1], dtype=np.int32)
        for index, block in enumerate(blocks):
            place = Place(dst_row=index * shape[1])
            if quantized is not None:
                self._pack_turned(matrix, quantized.decode(block), rows, place)
            elif tensor is not None:
                values = as_float32(_rows_of(tensor, block)).reshape(-1, shape[1])
                self._pack_values(matrix, _raw(module, np.ascontiguousarray(values.T)), rows, place)
        if quantized is not None:
            quantized.release()
        elif tensor is not None:
            self._source.release(tensor)

    def _pack_turned(self, matrix: PackedMatrix, decoded: CodedTensor, rows: Rows, place: Place) -> None:
        turned = decoded.turned(matrix.group) if decoded.format == matrix.format == "fp8" else None
        if turned is None:
            values = np.ascontiguousarray(decoded.dequantized().T)
            if matrix.format != "int8_group":
                self._pack_values(matrix, _raw(decoded.name, values), rows, place)
                return
            # Not via bf16, whose rounding would cost them as much again.
            turned = requantized(decoded.name, values, matrix.group)
        self._pack_codes(matrix, turned, rows, place)

    def _pack_values(self, matrix: PackedMatrix, tensor: RawTensor, rows: Rows, place: Place) -> None:
        try:
            matrix.pack(
                self._team,
                tensor.data,
                tensor.dtype,
                source_cols=tensor.shape[1],
                rows=rows,
                **vars(place),
            )
        except ValueError as error:
            raise _damaged(tensor.name, error) from error

    def _pack_codes(self, matrix: PackedMatrix, coded: CodedTensor, rows: Rows, place: Place) -> None:
        if matrix.format == "int8_group":
            coded = coded.widened() if coded.group % matrix.group == 0 else requantized(coded.name, coded.dequantized())
        offsets = None if coded.offsets is None else np.ascontiguousarray(coded.offsets)
        try:
            matrix.pack_codes(
                self._team,
                np.ascontiguousarray(coded.codes),
                np.ascontiguousarray(coded.scales),
                offsets,
                coded.factors,
                source_group=coded.group,
                offsets_are_zeros=coded.offsets_are_zeros,
                rows=rows,
                **vars(place),
            )
        except ValueError as error:
            raise _damaged(coded.name, error) from error


def _rows_of(tensor: RawTensor, rows: range) -> RawTensor:
    width = len(tensor.data) // tensor.shape[0]
    return replace(tensor, data=tensor.data[rows.start * width : rows.stop * width], shape=(len(rows), tensor.shape[1]))


def _gathered(tensor: RawTensor, gather: Gather) -> RawTensor:
    """Return the chosen columns of an ordinary tensor of numbers."""
    height, width = tensor.shape
    values = gather.of(tensor.data.view(f"u{len(tensor.data) // (height * width)}").reshape(height, width))
    return RawTensor(tensor.name, values.reshape(-1).view(np.uint8), tensor.dtype, values.shape)


def _upright(tensor: RawTensor, rows: Rows, place: Place, columns: int) -> tuple[RawTensor, Rows, Place]:
    """Return some rows and columns of a transposed tensor as an ordinary one, with the rows to take from it and their
    place."""
    height, width = tensor.shape
    values = tensor.data.view(f"u{len(tensor.data) // (height * width)}").reshape(width, height)
    upright = np.ascontiguousarray(values[place.first_col : place.first_col + columns, rows].T)
    raw = RawTensor(tensor.name, upright.reshape(-1).view(np.uint8), tensor.dtype, upright.shape)
    return raw, np.arange(len(rows), dtype=np.int32), replace(place, first_col=0)


def _reads_blocks(matrix: PackedMatrix, stored: Stored, place: Place) -> bool:
    kept = _NATIVE_BLOCKS.get(stored.layout)
    if kept is None or place.first_col % _BLOCK:
        return False
    return matrix.format == "bf16" or (matrix.group == _BLOCK and (matrix.format, matrix.offsets) == kept)


def _portions(rows: Rows, columns: int, place: Place, *, apart: bool) -> Iterator[tuple[range, Rows, Place]]:
    """Yield `rows` a few whole panels at a time: the rows of the tensor to decode, which of these to take, and their
    place. The rows to decode may be `apart`: interleaved gate and up rows need not be decoded twice."""
    count = max(1, _DECODED_BYTES // (4 * _PANEL * columns)) * _PANEL
    for start in range(0, len(rows), count):
        chosen = rows[start : start + count]
        first, step = int(chosen.min()), _distance(chosen) if apart else 1
        where = Place(place.dst_row + start, place.first_col, place.panel_stride, place.panel_offset)
        yield range(first, int(chosen.max()) + 1, step), (chosen - np.int32(first)) // np.int32(step), where


def _distance(rows: Rows) -> int:
    """Return the distance between rows that rise evenly; otherwise 1."""
    steps = np.diff(rows)
    return int(steps[0]) if len(steps) and steps[0] > 0 and (steps == steps[0]).all() else 1


def _raw(name: str, values: Floats) -> RawTensor:
    return RawTensor(name, values.reshape(-1).view(np.uint8), "f32", values.shape)


def _damaged(name: str, error: ValueError) -> OperatorError:
    return OperatorError(f"tensor {name} cannot be packed ({error}); fetch the checkpoint again")
