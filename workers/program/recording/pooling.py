"""The vectors of sequences that are pooled, in the vocabulary of the Program builder."""

from numaserve.workers.program.buffers import Operand, Residual, Tensor
from numaserve.workers.program.ops.base import Vector
from numaserve.workers.program.ops.rows import Multiply, Pool, Pooled, Pooling, TokenRows
from numaserve.workers.program.recording.recorder import Recorder


class PoolRecorder(Recorder):
    """Records the pooling of sequences."""

    def pool(self, x: Residual | Tensor, pooling: Pooling, weight: Vector | None = None, eps: float = 0.0) -> Tensor:
        """The vector, in fp32, of each sequence that is pooled: [sequences, columns of x]; of the RMS norms of its rows
        if there is a weight. All that is recorded after this works on these rows."""
        out = Tensor(self.limits.max_slots, x.cols, 4)
        self.operations.append(Pool(x=x, out=out, pooling=pooling, weight=weight, eps=eps))
        self.is_narrow = True
        return out

    def pool_columns(self, x: Tensor, pooling: Pooling, bounds: tuple[int, ...]) -> Tensor:
        """The same of a matrix whose columns the ranks divide: whole on every rank, [sequences, all columns].

        `bounds` are world size + 1 boundaries of the ranks' columns.
        """
        pooled = self.pool(x, pooling)
        if not self._in_ring:
            return pooled
        part = Tensor(pooled.rows, pooled.cols, 4, True)
        self.operations.append(Multiply(x=None, y=pooled, out=part, activation="none"))
        return self._gather_columns(part, bounds)

    def token_rows(self, x: Residual) -> Operand:
        """`x`, which is fp32, in bf16: [tokens, columns]; see `TokenRows`."""
        out = Operand(x.rows, x.cols, 2)
        self.operations.append(TokenRows(x=x, out=out))
        self.is_narrow = False
        return out

    def answer(self, vectors: Tensor) -> None:
        """Let `vectors`, fp32 [pooled sequences, columns], be read from outside after each step; the last thing to be
        recorded."""
        self.operations.append(Pooled(x=vectors))
