"""Operations that exchange data between ranks: the sum of their parts, norms of divided vectors, and sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.program.buffers import Buffer, Logits, Partial, Residual, Tensor
from numaserve.workers.program.cost import FP32, Amount, OperationCost, RowBytes, StepWork
from numaserve.workers.program.ops.base import Joining, Operation, Reads, Updates, Vector, Writes
from numaserve.workers.program.setup import ProgramSetup

# As the native sum over ranks has them. Above these bytes, each of more than two ranks sums a share. From these rows
# on, the sum overlaps the product before it, in pieces of these columns. A matrix product has these rows in a block.
_ONE_SHOT_BYTES = 256 << 10
_OVERLAPPED_ROWS = 128
_PIECE_COLUMNS = 128
_ROW_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class Reduce(Joining):
    """residual += post_norm?(sum of the ranks' parts + bias), in rank order. `assign`: = instead of +=.

    With a product `before` it, each thread multiplies and sums its pieces of many rows one after the other. `sum` is
    where it lies where there is a `post_norm`, which needs all of it. The stream is then multiplied by `scale`, one
    number.
    """

    partial: Reads[Partial]
    residual: Updates[Residual]
    sum: Writes[Tensor | None] = None
    assign: bool = False
    bias: Vector | None = None
    post_norm: Vector | None = None
    eps: float = 0.0
    scale: Vector | None = None

    @property
    def reads(self) -> list[Buffer]:
        """The buffers that it reads: not the residual stream where that begins here."""
        return [each for each in super().reads if not (self.assign and each is self.residual)]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Every rank fetches what the others have of all rows, or sums a share of them and fetches the sums."""
        world, passes = program.ranks.world, 2 if self.post_norm else 1
        row_bytes = self.partial.ld * FP32
        moves = RowBytes(token=row_bytes * (2 * passes + 1))

        def amount(step: StepWork) -> Amount:
            if world <= 2 or step.tokens * row_bytes <= _ONE_SHOT_BYTES:
                return Amount(rows=step.tokens, meetings=min(world - 1, 1))
            return Amount(rows=step.tokens, meetings=2, overlapped=self._overlapped(step.tokens, program.ranks.lanes))

        return [OperationCost("add_all_reduce", "exchange", amount, moves=moves)]

    def _overlapped(self, rows: int, lanes: int) -> float:
        """The fraction of the shorter of product and exchange that overlaps the other: all but the first pieces of the
        product, for which no sum is ready, and the last sums."""
        if self.before is None or rows < _OVERLAPPED_ROWS:
            return 0.0
        pieces = rows * self.partial.ld / (lanes * min(rows, _ROW_BLOCK) * _PIECE_COLUMNS)
        return max(1.0 - 1.0 / pieces, 0.0)


@dataclass(frozen=True, kw_only=True)
class DividedNorm(Operation):
    """Norms of vectors that the ranks divide: x = x / sqrt(mean(x²) + eps) * weight, the mean over all ranks.

    The rank's columns of the vectors are the first columns of x, fp32 [tokens, columns], in the order of `weights`.
    `counted`: the number of these, the last ones, that no lower rank has too; `columns`: the number on all ranks.
    `message`, fp32 [tokens, vectors], has this rank's sums of squares, which are added in rank order.
    """

    x: Updates[Tensor]
    message: Writes[Tensor]
    weights: tuple[Vector, ...]
    counted: tuple[int, ...]
    columns: tuple[int, ...]
    eps: float

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read twice and written once."""
        moves = RowBytes(token=3 * sum(weight.size for weight in self.weights) * FP32)
        meetings = min(program.ranks.world - 1, 1)
        return [
            OperationCost(
                "divided_norm", "exchange", lambda step: Amount(rows=step.tokens, meetings=meetings), moves=moves
            )
        ]


@dataclass(frozen=True, kw_only=True)
class Sample(Operation):
    """Samples from rows of logits. Each rank has a part of the vocabulary, and all ranks get the tokens.

    `vocab_first`: world size + 1 boundaries of the parts. `softcap` 0: none.
    """

    logits: Reads[Logits]
    tokens: Writes[Tensor]
    vocab_first: tuple[int, ...]
    softcap: float

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """The first rank reads the logits of all ranks and sends them the tokens."""
        meetings = 2 if program.ranks.world > 1 else 0
        moves = RowBytes(logit_row=0 if program.ranks.rank else self.vocab_first[-1] * FP32)
        return [
            OperationCost("sample", "sample", lambda step: Amount(rows=step.logit_rows, meetings=meetings), moves=moves)
        ]
