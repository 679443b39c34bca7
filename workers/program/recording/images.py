"""Image input, in the vocabulary of the Program builder."""

from numaserve.workers.program.buffers import Operand, Persistent, Residual
from numaserve.workers.program.cost import BF16
from numaserve.workers.program.ops.images import MergeRows, PlaceRows
from numaserve.workers.program.ops.rows import Given
from numaserve.workers.program.recording.recorder import Recorder


class ImageRecorder(Recorder):
    """Records operations of image input."""

    def place_rows(self, name: str, residual: Residual, rows_per_tile: int) -> None:
        """Let each step's plan replace rows of `residual` with rows of a pool that has features of
        `Capacity.feature_tiles` tiles. See `OutsideRows.given` for the pool of that name: the bits of bf16 [feature
        rows, columns]."""
        pool = Persistent(self.limits.feature_tiles * rows_per_tile, residual.cols, BF16)
        if pool.rows:
            self.operations.insert(0, Given(name=name, out=pool))
            self.operations.append(PlaceRows(residual=residual, pool=pool))

    def merge_rows(self, x: Operand, *, side: int, factor: int) -> Operand:
        """The rows of each block of factor x factor patches next to each other: bf16 [tokens / factor², columns *
        factor²]; see `MergeRows`. All that is recorded after this works on these rows. Each sequence of a step must be
        a tile of side x side patches.

        Raises `ValueError` for a side that is no multiple of the factor.
        """
        if factor < 1 or side < 1 or side % factor:
            raise ValueError(f"the side of a tile must be a multiple of {factor} patches, not {side}")
        merged = factor * factor
        out = Operand(x.rows // merged, x.cols * merged, BF16)
        self.operations.append(MergeRows(x=x, out=out, side=side, factor=factor))
        self.is_narrow = True
        return out
