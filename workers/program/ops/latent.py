"""Operations of multi-head latent attention; those that make its products are `HeadLinear`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from numaserve.workers.program.buffers import Operand, Tensor
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.cost import (
    BF16,
    FP32,
    Amount,
    OperationCost,
    RowBytes,
    StepWork,
    kv_bytes_per_token,
    of_rows,
    part_of_blocks,
    parted,
)
from numaserve.workers.program.ops.base import Operation, Reads, Rope, Updates, Vector, Writes
from numaserve.workers.program.setup import ProgramSetup


@dataclass(frozen=True, kw_only=True)
class LatentStore(Operation):
    """Stores latents in `cache`, and takes the queries apart.

    `q`, fp32: for each head the part without positions, `nope_dim` wide, then the rotated part, in halves. `kv`, fp32:
    the latent, which `norm` normalizes, and the rotated key that all heads share. `nope`, bf16, gets the parts without
    positions. `query`, bf16 [tokens, heads * (latent + rotated)], gets the rotated parts, after the space of the
    absorbed parts.
    """

    q: Reads[Tensor]
    kv: Reads[Tensor]
    nope: Writes[Operand]
    query: Writes[Tensor]
    cache: CacheIndex
    nope_dim: int
    rope: Rope
    norm: Vector
    eps: float

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """fp32 is read; queries and the latent written in bf16."""
        heads = program.shape.caches[self.cache.kind].heads
        queries = heads.query * (self.nope_dim + heads.dim - heads.value_dim)
        return [of_rows("latent_store", (queries + heads.dim) * (FP32 + BF16))]


@dataclass(frozen=True, kw_only=True)
class GatherColumns(Operation):
    """out [tokens, columns] = every rank's `message` side by side; `bounds`: world size + 1 boundaries of these."""

    message: Reads[Tensor]
    out: Writes[Tensor]
    bounds: tuple[int, ...]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """The others' parts are fetched, and all is written."""
        moves = RowBytes(token=2 * self.out.ld * FP32)
        return [
            OperationCost("gather_columns", "exchange", lambda step: Amount(rows=step.tokens, meetings=1), moves=moves)
        ]


@dataclass(frozen=True, kw_only=True)
class GatherQueries(Operation):
    """gathered, bf16 [sequences, all ranks' heads * (latent + rotated)] = the queries of the sequences that the ranks
    divide; `message` is where each rank shows its own."""

    query: Reads[Tensor]
    message: Writes[Tensor]
    gathered: Writes[Tensor]

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """Queries of the ranks' heads are fetched, and copied."""

        def amount(step: StepWork) -> Amount:
            rows = parted(step, program.context_parallel)[0].tokens
            return Amount(rows=rows, meetings=min(rows, 1))

        moves = RowBytes(divided=2 * self.gathered.ld * BF16)
        return [OperationCost("gather_queries", "exchange", amount, moves=moves)]


@dataclass(frozen=True, kw_only=True)
class DividedAttention(Operation):
    """Attention of the sequences that the ranks divide, of which q has all ranks' heads: each rank takes its blocks of
    the latents for all heads, shows the results in `message`, and merges all ranks' of its own heads into their rows of
    out."""

    q: Reads[Tensor]
    message: Writes[Tensor]
    out: Updates[Operand]
    partial: Writes[Tensor]
    cache: CacheIndex
    scale: float

    def cost(self, program: ProgramSetup) -> Sequence[OperationCost]:
        """The rank's blocks of the KV cache are read for all heads; results of others for its own are fetched."""
        heads, ranks = program.shape.caches[self.cache.kind].heads, program.ranks
        dtype = program.settings.kv_cache_dtype
        position = kv_bytes_per_token(heads, dtype)
        pair = 2 * (self.q.ld // heads.dim) * (heads.dim + heads.value_dim)

        def divided(step: StepWork) -> StepWork:
            return parted(step, program.context_parallel)[0]

        def part_of(tokens: Iterable[int]) -> int:
            return sum(part_of_blocks(each, ranks.world, ranks.rank) for each in tokens)

        def amount(step: StepWork) -> Amount:
            found = divided(step)
            positions = part_of(start + count for start, count in found.sequences)
            pairs = part_of(end + 1 for start, count in found.sequences for end in range(start, start + count))
            rows = found.tokens / max(len(found.sequences), 1)
            return Amount(position * positions, pair * pairs, rows, meetings=min(found.tokens, 1))

        moves = RowBytes(divided=2 * heads.query * heads.value_dim * FP32 * (ranks.world - 1))
        return [OperationCost("divided_attention", "latent", amount, weights=dtype, moves=moves)]
