"""Image input, in the vocabulary of the Program builder."""

from typing import TypeVar

from numaserve.workers.program.buffers import Partial, Persistent, Residual, Tensor
from numaserve.workers.program.cost import BF16
from numaserve.workers.program.ops.base import Matrix, Rope
from numaserve.workers.program.ops.images import EmbedTaps, MergeRows, PlaceRows, RotaryRows
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

    def add_taps(self, partial: Partial, table: Matrix, *, name: str, first_row: int, taps: int) -> None:
        """Add the weighted sum of `taps` rows of `table` to this rank's part of a sum. Their numbers and weights are
        filled in from outside; see `EmbedTaps`."""
        weights = Tensor(self.limits.max_step_tokens, 2 * taps, 4)
        self.operations.insert(0, Given(name=name, out=weights))
        self.operations.append(EmbedTaps(weights=weights, out=partial, table=table, first_row=first_row, taps=taps))

    def merge_rows(self, x: _Rows, *, side: int, factor: int, extra: int = 0, many: bool = False) -> _Rows:
        """The rows of each block of factor x factor patches next to each other: [tokens / factor², columns * factor²]
        of the type of `x`; see `MergeRows`. All that is recorded after this works on these rows, or merges others. Each
        sequence of a step must be a tile of side x side patches, or `many` of them. A lone tile may have `extra` rows
        after its patches, which become nothing.

        Raises `ValueError` for a side that is no multiple of the factor.
        """
        if factor < 1 or side < 1 or side % factor:
            raise ValueError(f"the side of a tile must be a multiple of {factor} patches, not {side}")
        merged = factor * factor
        out = type(x)(x.rows // merged, x.cols * merged, x.itemsize)
        self.operations.append(MergeRows(x=x, out=out, side=side, factor=factor, extra=extra, many=many))
        self.is_narrow = True
        return out
