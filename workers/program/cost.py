"""The costs of operations: bytes read, operations and exchanges, as functions of the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from msgspec.structs import replace
from numaserve.workers.interface.protocol import OperationTerms
from numaserve.workers.interface.settings import KvCacheDtype
from numaserve.workers.interface.windows import Window
from numaserve.workers.program.buffers import ATTENTION_BLOCK, padded
from numaserve.workers.program.caches import Heads
from numaserve.workers.program.context_parallel import ContextParallel

FP32, BF16, INT8 = 4, 2, 1  # bytes

# The key of an operation's efficiency. "rows": it does little with each token but read and write it.
# "recurrent": it reads and writes the states of sequences, and multiplies with them in fp32.
Kind = Literal["gemm", "experts", "attention", "latent", "recurrent", "rows", "sample", "exchange"]

_SUMMED = (
    "weight_bytes",
    "row_flops",
    "expert_bytes",
    "position_bytes",
    "pair_flops",
    "sequence_bytes",
    "adapter_bytes",
    "adapter_flops",
)


@dataclass(frozen=True)
class StepWork:
    """The work of a step: (position of the first new token, number of new tokens) for each sequence, the number of rows
    of logits that are wanted, and that of sequences that are pooled. The last operations work on one kind of these."""

    sequences: Sequence[tuple[int, int]]
    logit_rows: int
    pooled: int = 0

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return sum(count for _, count in self.sequences)

    @property
    def last_rows(self) -> int:
        """Rows of the last operations."""
        return self.logit_rows + self.pooled

    def rows(self, logits: bool) -> int:
        """Rows of the last operations, or new tokens."""
        return self.last_rows if logits else self.tokens

    def sequence_rows(self) -> list[int]:
        """The last rows of each sequence: the same number of all as far as they have the tokens."""
        left, found = self.last_rows, list[int]()
        for index, (_, count) in enumerate(self.sequences):
            found.append(min(count, -(-left // (len(self.sequences) - index))))
            left -= found[-1]
        return found

    def narrowed(self) -> StepWork:
        """The step with its last rows as its new tokens: the last ones of each sequence."""
        each = zip(self.sequences, self.sequence_rows(), strict=True)
        found = [(start + count - rows, rows) for (start, count), rows in each if rows]
        return StepWork(found, self.logit_rows, self.pooled)


@dataclass(frozen=True)
class Amount:
    """The amount of work of one operation, for one step on one rank. `nbytes` and `flops` are what the Program counts:
    weights and KV cache that are read, states that are read and written, and operations; with experts both are expected
    values. An exchange and the operation before it may overlap: `overlapped` is the fraction of the shorter one that
    does."""

    nbytes: float = 0.0
    flops: float = 0.0
    rows: float = 0.0  # that share a weight once it is read
    meetings: int = 0  # how often the ranks wait for each other
    overlapped: float = 0.0


class RowBytes(NamedTuple):
    """The bytes that an operation of rows reads and writes, as data: in each step, and for each sequence, token, row of
    logits, pooled sequence, and token of a sequence that the ranks divide."""

    step: int = 0
    sequence: int = 0
    token: int = 0
    logit_row: int = 0
    pooled: int = 0
    divided: int = 0

    def of(self, totals: Iterable[int]) -> int:
        """Return the bytes of some steps, from the numbers of all these, in the same order."""
        return sum(nbytes * count for nbytes, count in zip(self, totals, strict=True))


NO_ROWS = RowBytes()


@dataclass(frozen=True)
class OperationCost:
    """The cost of an operation. `weights` is their format ("int4/32"), `computes` that of what is multiplied. `terms`:
    bytes and flops of `amount` as data, for those that have some. `moves`: the bytes that it touches, as data."""

    name: str
    kind: Kind
    amount: Callable[[StepWork], Amount]
    weights: str = "bf16"
    computes: str = "bf16"
    terms: OperationTerms | None = None
    moves: RowBytes = NO_ROWS

    @property
    def is_row_wise(self) -> bool:
        """Whether it takes its time to move activations, not to read weights or to compute."""
        return self.kind in ("rows", "sample", "exchange")


def merged_terms(costs: Iterable[OperationCost]) -> list[OperationTerms]:
    """The terms of all costs, one for each name and kind of row, window and choice of experts."""
    found: dict[tuple[object, ...], OperationTerms] = {}
    for terms in (cost.terms for cost in costs if cost.terms is not None):
        key = (terms.name, terms.of_logits, terms.window, terms.num_experts, terms.top_k)
        found[key] = _sum(found[key], terms) if key in found else terms
    return list(found.values())


def of_whole(terms: Iterable[OperationTerms], tokens: int) -> list[OperationTerms]:
    """The same terms with a whole sequence of `tokens` tokens as a row, for steps of such sequences alone."""
    pairs = tokens * (tokens + 1) // 2
    return [
        OperationTerms(
            each.name,
            weight_bytes=each.weight_bytes,
            row_flops=each.row_flops * tokens + each.pair_flops * pairs,
            sequence_bytes=each.position_bytes * tokens,
        )
        for each in terms
    ]


def _sum(one: OperationTerms, other: OperationTerms) -> OperationTerms:
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in _SUMMED})


def of_logit_rows(cost: OperationCost) -> OperationCost:
    """The cost of the same operation on the rows of logits, or of pooled sequences, alone."""
    terms = None if cost.terms is None else replace(cost.terms, of_logits=True)

    def amount(step: StepWork) -> Amount:
        return cost.amount(step.narrowed()) if step.last_rows else Amount()

    token, moves = cost.moves.token, cost.moves
    moves = moves._replace(token=0, logit_row=moves.logit_row + token, pooled=moves.pooled + token)
    return dataclasses.replace(cost, amount=amount, terms=terms, moves=moves)


def of_merged_rows(cost: OperationCost, merged: int) -> OperationCost:
    """The cost of the same operation on rows that were made of `merged` tokens each. All columns of such rows are
    multiples of `merged`."""
    terms = None if cost.terms is None else replace(cost.terms, row_flops=cost.terms.row_flops / merged)

    def amount(step: StepWork) -> Amount:
        sequences = [(start // merged, count // merged) for start, count in step.sequences]
        return cost.amount(StepWork(sequences, step.logit_rows, step.pooled))

    moves = cost.moves._replace(token=cost.moves.token // merged)
    return dataclasses.replace(cost, amount=amount, terms=terms, moves=moves)


def of_rows(name: str, row_bytes: int, *, logits: bool = False) -> OperationCost:
    """The cost of what reads and writes `row_bytes` bytes of each token, or with `logits` of each row of logits."""
    moves = RowBytes(logit_row=row_bytes, pooled=row_bytes) if logits else RowBytes(token=row_bytes)
    return OperationCost(name, "rows", lambda step: Amount(rows=step.rows(logits)), moves=moves)


def attended(step: StepWork, window: Window) -> tuple[int, int]:
    """Positions whose keys and values are read, and pairs of a query and a key, for one head."""
    positions = pairs = 0
    for start, rows in step.sequences:
        end = start + rows
        if window.aligned or window.bidirectional:
            positions += end - window.first(start)
            pairs += sum(window.end(position, end) - window.first(position) for position in range(start, end))
            continue
        seen = window.tokens or start + rows
        growing = min(max(seen - start, 0), rows)  # tokens that see everything before them
        positions += start + rows - max(start - seen + 1, 0)
        pairs += growing * start + growing * (growing + 1) // 2 + (rows - growing) * seen
    return positions, pairs


def parted(step: StepWork, parallel: ContextParallel | None) -> tuple[StepWork, StepWork]:
    """The sequences whose latents the ranks divide, and those that each rank attends to whole."""
    divided: list[tuple[int, int]] = []
    whole: list[tuple[int, int]] = []
    for start, count in step.sequences:
        apart = parallel is not None and parallel.divides(start, count, sum(count for _, count in divided))
        (divided if apart else whole).append((start, count))
    return StepWork(divided, step.logit_rows), StepWork(whole, step.logit_rows)


def part_of_blocks(tokens: int, world: int, rank: int) -> int:
    """Tokens in those blocks of a sequence that come to `rank` when `world` ranks take them in turn."""
    starts = range(rank * ATTENTION_BLOCK, tokens, world * ATTENTION_BLOCK)
    return sum(min(ATTENTION_BLOCK, tokens - start) for start in starts)


def expected_share(num_experts: int, top_k: int, tokens: int) -> float:
    """The expected fraction of the experts that `tokens` tokens go to, each to `top_k` of them, all alike."""
    return 1.0 - (1.0 - top_k / num_experts) ** tokens


def kv_bytes_per_token(heads: Heads, dtype: KvCacheDtype) -> int:
    """Bytes of one layer's keys and values of a token; a latent is both. Codes of a byte have a scale."""
    dims = [padded(dim) for dim in ([heads.dim] if heads.is_latent else [heads.dim, heads.values])]
    return heads.kv * sum(dim * BF16 if dtype == "bf16" else dim + BF16 for dim in dims)
