"""Image input, in the vocabulary of the Program builder."""

from collections.abc import Sequence
from typing import TypeVar

from numaserve.workers.program.buffers import Columns, Partial, Persistent, Residual, Tensor
from numaserve.workers.program.cost import BF16
from numaserve.workers.program.ops.base import Matrix, Rope, Vector
from numaserve.workers.program.ops.images import (
    Clamp,
    EmbedTaps,
    MeanRows,
    MergeRows,
    PlaceRows,
    RotaryRows,
)
from numaserve.workers.program.ops.rows import Given
from numaserve.workers.program.recording.recorder import Recorder
from numaserve.workers.program.slots import RowIndex

_Rows = TypeVar("_Rows", bound=Residual | Tensor)


class ImageRecorder(Recorder):
    """Records operations of image input."""

    def place_rows(self, name: str, residual: Residual, rows_per_tile: int, *, add: bool = False) -> None:
        """Let each step's plan replace rows of `residual` with rows of a pool that has features of
        `Capacity.feature_tiles` tiles, or add these. See `OutsideRows.given` for the pool of that name: the bits of
        bf16 [feature rows, columns]."""
        pool = Persistent(self.limits.feature_tiles * rows_per_tile, residual.cols, BF16)
        if pool.rows:
            self.operations.insert(0, Given(name=name, out=pool))
            self.operations.append(PlaceRows(residual=residual, pool=pool, add=add))

    def rotate_by(self, rope: Rope, axes: tuple[RowIndex, ...]) -> None:
        """Let all that is rotated by `rope` after this take the values of each pair at the token's index in `axes`."""
        self.rotary[rope] = Tensor(self.limits.max_step_tokens, 2 * len(axes), 4)
        self.operations.append(RotaryRows(out=self.rotary[rope], rope=rope, axes=axes))

    def rotate_as_given(self, rope: Rope, name: str, pairs: int) -> None:
        """Let all that is rotated by `rope` after this take the cosines and sines of `pairs` that are filled in from
        outside before each step: fp32 [tokens, cosines of all pairs, then sines]."""
        self.rotary[rope] = Tensor(self.limits.max_step_tokens, 2 * pairs, 4)
        self.operations.insert(0, Given(name=name, out=self.rotary[rope]))

    def add_taps(self, out: Partial | Residual, table: Matrix, *, name: str, first_row: int = 0, taps: int) -> None:
        """Add the weighted sum of `taps` rows of `table` to this rank's part of a sum, or of a whole table to a
        residual stream. Their numbers and weights are filled in from outside; see `EmbedTaps`."""
        weights = Tensor(self.limits.max_step_tokens, 2 * taps, 4)
        self.operations.insert(0, Given(name=name, out=weights))
        self.operations.append(EmbedTaps(weights=weights, out=out, table=table, first_row=first_row, taps=taps))

    def merge_rows(self, x: _Rows, *, side: int, factor: int, extra: int = 0, many: bool = False) -> _Rows:
        """The rows of each block of factor x factor patches next to each other: [tokens / factor², columns * factor²]
        of the type of `x`; see `MergeRows`. All that is recorded after this works on these rows, or merges others. Each
        sequence of a step must be a tile of side x side patches, or `many` of them. A lone tile may have `extra` rows
        after its patches, which become nothing.

        Raises `ValueError` for a side that is no multiple of the factor.
        """
        merged = _merged(side, factor)
        out = type(x)(x.rows // merged, x.cols * merged, x.itemsize)
        self.operations.append(MergeRows(x=x, out=out, side=side, factor=factor, extra=extra, many=many))
        self.is_narrow = True
        return out

    def mean_rows(
        self,
        x: Residual,
        *,
        side: int,
        factor: int,
        many: bool = False,
        shift: Vector | None = None,
        weight: Vector | None = None,
        eps: float = 0.0,
    ) -> Residual:
        """(The mean of each block of factor x factor patches - shift) * weight: fp32 [tokens / factor², columns]. With
        an `eps` above 0 it is the RMS norm of that, without a weight. All the rest is as for `merge_rows`."""
        out = Residual(x.rows // _merged(side, factor), x.cols, 4)
        mean = MeanRows(x=x, out=out, side=side, factor=factor, many=many, shift=shift, weight=weight, eps=eps)
        self.operations.append(mean)
        self.is_narrow = True
        return out

    def clamped(self, x: _Rows, bounds: Vector) -> _Rows:
        """`x` with values between two `bounds`, of its shape and type."""
        out = type(x)(x.rows, x.cols, x.itemsize)
        self.operations.append(Clamp(x=x, out=out, bounds=bounds))
        return out

    def clamped_beside(self, parts: Sequence[tuple[Tensor, Vector]]) -> Tensor:
        """fp32 tensors side by side, each with values between its two bounds: fp32 [tokens, columns of all]."""
        first = 0
        out = Tensor(parts[0][0].rows, sum(x.cols for x, _ in parts), 4)
        for x, bounds in parts:
            place = Columns(x.rows, x.cols, 4, of=out, first=first)
            self.operations.append(Clamp(x=x, out=place, bounds=bounds))
            first += x.cols
        return out


def _merged(side: int, factor: int) -> int:
    if factor < 1 or side < 1 or side % factor:
        raise ValueError(f"the side of a tile must be a multiple of {factor} patches, not {side}")
    return factor * factor
