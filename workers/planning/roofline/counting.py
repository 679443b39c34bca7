"""A Program that only counts: it takes the nodes that the Program builder makes, and knows what each will cost.

The families' forward pass and the builder are those that run. So the operations are the native Program's one by one,
with the formats, fusions and collectives that it has.
"""

# ruff: noqa: PLR0917  methods take what the native ones take
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from numaserve.kernels import PackedMatrix, Program, Vector
from numaserve.workers.planning.roofline.operations import (
    Amount,
    Kind,
    Operation,
    StepWork,
    attended,
    expected_share,
    part_of_blocks,
)
from numaserve.workers.program.buffers import padded
from numaserve.workers.program.builder import ProgramBuilder
from numaserve.workers.protocol import PAGE_SIZE
from numaserve.workers.settings import KvCacheDtype

Place = tuple[int, int, int]
_FP32, _BF16, _INT8 = 4, 2, 1
_LANES = 16  # columns that a core works on at once
_ONE_SHOT_BYTES = 256 << 10  # as the native sum over ranks has it: beyond, each of more than two ranks sums a share


class CountingProgram:
    """Takes nodes as `kernels.Program` does; its methods have the same names and arguments."""

    def __init__(self, builder: ProgramBuilder, ranks: Sequence[int], rank: int) -> None:
        self.operations: list[Operation] = []
        self._shape = builder.shape
        self._kv_dtype: KvCacheDtype = builder.settings.kv_cache_dtype
        self._world, self._rank, self._lanes = len(ranks), rank, min(ranks)
        self._parallel = builder.context_parallel()
        self._routing = (1, 1)  # experts, and how many of them a token goes to, of the mixture that began last

    def embed(self, table: PackedMatrix, first_row: int, scale: float, out: Place) -> None:
        """A row of the table is read, and one written."""
        self._rows("embed", table.k * (_BF16 + _FP32))

    def rms_norm(self, x: Place, weight: Vector, out: Place, eps: float, quantized: object) -> None:
        """The residual stream is read, its norm written, maybe in int8 too."""
        row_bytes = weight.size * (_FP32 + _BF16 + (_INT8 if quantized else 0))
        self._columns("rms_norm", weight.size, row_bytes, weight.size * _FP32)

    def quantize(self, x: Place, out: tuple[Place, int, int], rows_per_token: int, logits: bool) -> None:
        """bf16 is read, int8 written."""
        columns = rows_per_token * out[1]
        self._columns("quantize", columns, columns * (_BF16 + _INT8), columns * _BF16, logits)

    def linear(
        self,
        name: str,
        x: Place,
        weight: PackedMatrix,
        bias: object,
        activation: str,
        widened: bool,
        accumulate: bool,
        logits: bool,
        out: Place,
    ) -> None:
        """All weights are read once, whatever the number of rows."""

        def amount(step: StepWork) -> Amount:
            rows = step.logit_rows if logits else step.tokens
            return Amount(weight.nbytes if rows else 0, 2 * weight.n * weight.k * rows, rows)

        self._add(name, "gemm", amount, weight, widened)

    def head_linear(
        self,
        name: str,
        x: Place,
        x_stride: int,
        weight: PackedMatrix,
        num_heads: int,
        widened: bool,
        out: Place,
        out_stride: int,
    ) -> None:
        """As `linear`."""

        def amount(step: StepWork) -> Amount:
            return Amount(weight.nbytes, 2 * weight.n * weight.k * step.tokens, step.tokens)

        self._add(name, "latent", amount, weight, widened)

    def quantize_heads(
        self, x: Place, x_stride: int, out: tuple[Place, int, int], out_stride: int, num_heads: int
    ) -> None:
        """bf16 is read, int8 written."""
        self._runs("quantize", num_heads, num_heads * out[1] * (_BF16 + _INT8))

    def reduce(
        self,
        partial: Place,
        residual: Place,
        sum: Place,
        cols: int,
        assign: bool,
        bias: object,
        post_norm: object,
        eps: float,
    ) -> None:
        """Every rank fetches what the others have of all rows, or sums a share of them and fetches the sums."""
        others, passes = self._world - 1, 2 if post_norm else 1

        def amount(step: StepWork) -> Amount:
            nbytes = step.tokens * partial[1] * _FP32
            fetched: float = nbytes * others
            meetings = min(others, 1)
            if self._world > 2 and nbytes > _ONE_SHOT_BYTES and step.tokens >= self._world * self._lanes:
                fetched, meetings = 2 * nbytes * others / self._world, 2
            return Amount(
                rows=step.tokens,
                touched=nbytes * (2 * passes + 1),
                pieces=_column_pieces(step.tokens, cols),
                repeated=nbytes * (passes - 1),
                fetched=fetched,
                meetings=meetings,
            )

        self.operations.append(Operation("add_all_reduce", "exchange", amount))

    def rope_store(
        self, qkv: Place, q: Place, layer: int, rope: object, q_norm: object, k_norm: object, eps: float
    ) -> None:
        """fp32 is read; queries, keys and values written in bf16."""
        heads = self._shape.q_heads + 2 * self._shape.kv_heads
        self._runs("rope_store", heads, heads * self._shape.head_dim * (_FP32 + _BF16))

    def mla_store(
        self,
        q: Place,
        kv: Place,
        nope: Place,
        query: Place,
        layer: int,
        nope_dim: int,
        rope: object,
        norm: object,
        eps: float,
    ) -> None:
        """fp32 is read; queries and the latent written in bf16."""
        shape = self._shape
        queries = shape.q_heads * (nope_dim + shape.head_dim - shape.value_dim)
        self._runs("mla_store", shape.q_heads + 1, (queries + shape.head_dim) * (_FP32 + _BF16))

    def attention(
        self,
        q: Place,
        out: Place,
        partial: Place,
        layer: int,
        scale: float,
        window: int,
        softcap: float,
        sinks: object = None,
    ) -> None:
        """The KV cache is read once for all new tokens of a sequence."""
        shape = self._shape
        latent = shape.value_dim > 0
        position = kv_bytes_per_token(shape.kv_heads, shape.head_dim, self._kv_dtype, latent=latent)
        pair = 2 * shape.q_heads * (shape.head_dim + (shape.value_dim or shape.head_dim))

        def amount(step: StepWork) -> Amount:
            whole = self._attended_whole(step)
            positions, pairs = attended(whole, window)
            return Amount(position * positions, pair * pairs, whole.tokens / max(len(whole.sequences), 1))

        kind: Kind = "latent" if latent else "attention"
        self.operations.append(Operation("attention", kind, amount, weights=self._kv_dtype))

    def gather_columns(self, message: Place, out: Place, bounds: Sequence[int]) -> None:
        """What others have made is fetched, and all is written."""
        row = out[1] * _FP32

        def amount(step: StepWork) -> Amount:
            rows = step.tokens
            fetched = rows * row * (self._world - 1) / self._world
            return Amount(rows=rows, touched=2 * rows * row, pieces=rows * self._world, fetched=fetched, meetings=1)

        self.operations.append(Operation("gather_columns", "exchange", amount))

    def gather_queries(self, query: Place, message: Place, gathered: Place) -> None:
        """Queries of the ranks' heads are fetched, and copied."""
        row = gathered[1] * _BF16

        def amount(step: StepWork) -> Amount:
            rows = len(self._divided(step))
            fetched = rows * row * (self._world - 1) / self._world
            return Amount(rows=rows, touched=2 * rows * row, pieces=rows, fetched=fetched, meetings=min(rows, 1))

        self.operations.append(Operation("gather_queries", "exchange", amount))

    def divided_attention(self, q: Place, message: Place, out: Place, partial: Place, layer: int, scale: float) -> None:
        """The rank's blocks of the KV cache are read for all heads; results of others for its own are fetched."""
        shape, heads = self._shape, q[1] // self._shape.head_dim
        position = kv_bytes_per_token(1, shape.head_dim, self._kv_dtype, latent=True)
        pair = 2 * heads * (shape.head_dim + shape.value_dim)

        def amount(step: StepWork) -> Amount:
            context = [start + 1 for start, _ in self._divided(step)]
            seen = sum(part_of_blocks(tokens, self._world, self._rank) for tokens in context)
            return Amount(position * seen, pair * seen, min(len(context), 1))

        def exchange(step: StepWork) -> Amount:
            rows = len(self._divided(step))
            others = rows * shape.q_heads * shape.value_dim * _FP32 * (self._world - 1)
            return Amount(rows=rows, touched=2 * others, pieces=rows, fetched=others, meetings=min(rows, 1))

        self.operations.append(Operation("divided_attention", "latent", amount, weights=self._kv_dtype))
        self.operations.append(Operation("divided_attention", "exchange", exchange))

    def _divided(self, step: StepWork) -> list[tuple[int, int]]:
        """The sequences whose latents the ranks divide."""
        return self._parted(step)[0]

    def _attended_whole(self, step: StepWork) -> StepWork:
        """Without those."""
        return StepWork(self._parted(step)[1], step.logit_rows)

    def _parted(self, step: StepWork) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        divided: list[tuple[int, int]] = []
        whole: list[tuple[int, int]] = []
        from_tokens, room = (self._parallel.from_tokens, self._parallel.max_rows) if self._parallel else (0, 0)
        for start, count in step.sequences:
            long = count == 1 and start + 1 >= from_tokens
            (divided if long and len(divided) < room else whole).append((start, count))
        return divided, whole

    def moe_route(self, logits: Place, x: Place, top_k: int, num_experts: int, item_bytes: int, **rest: object) -> None:
        """A token's row is copied for each of its experts."""
        self._routing = (num_experts, top_k)
        self._rows("moe_route", 2 * top_k * x[1] * item_bytes)

    def moe_experts(
        self,
        name: str,
        weights: Sequence[PackedMatrix],
        shared: PackedMatrix | None,
        widened: bool,
        shared_widened: bool,
        **rest: object,
    ) -> None:
        """The experts that tokens go to are read, each once, and the shared one."""
        first = weights[0] if weights else shared
        if first is None:
            return
        num_experts, top_k = self._routing
        nbytes = sum(each.nbytes for each in weights)
        features = sum(each.n * each.k for each in weights)

        def amount(step: StepWork) -> Amount:
            share = expected_share(num_experts, top_k, step.tokens)
            rows = step.tokens * top_k / num_experts  # of each expert
            total, flops = nbytes * share, 2 * features * rows
            if shared is not None:
                total, flops = total + shared.nbytes, flops + 2 * shared.n * shared.k * step.tokens
            return Amount(total, flops, rows / share)

        self._add(name, "experts", amount, first, widened if weights else shared_widened)

    def moe_combine(
        self, y: Place, routes: Place, top_k: int, shared: Place | None, accumulate: bool, out: Place
    ) -> None:
        """A row for each of a token's experts is read."""
        self._columns("moe_combine", y[1], y[1] * _FP32 * (top_k + (1 if shared else 0)))

    def gather(self, x: Place, out: Place) -> None:
        """Rows are copied."""
        self._rows("gather", x[1] * 2 * _BF16, logits=True)

    def sample(self, logits: Place, tokens: Place, vocab_first: Sequence[int], softcap: float) -> None:
        """The first rank reads everybody's logits, and tells them the tokens."""
        row, own, others = vocab_first[-1] * _FP32, vocab_first[1] * _FP32, self._world - 1

        def amount(step: StepWork) -> Amount:
            rows = step.logit_rows
            fetched = rows * (row - own)
            return Amount(rows=rows, touched=rows * row, pieces=rows, fetched=fetched, meetings=2 if others else 0)

        self.operations.append(Operation("sample", "sample", amount))

    def _rows(self, name: str, row_bytes: int, logits: bool = False) -> None:
        def amount(step: StepWork) -> Amount:
            rows = step.logit_rows if logits else step.tokens
            return Amount(rows=rows, touched=rows * row_bytes, pieces=rows)

        self.operations.append(Operation(name, "rows", amount))

    def _columns(self, name: str, columns: int, row_bytes: int, repeated: int = 0, logits: bool = False) -> None:
        """Rows that are cut at columns where there are few of them."""

        def amount(step: StepWork) -> Amount:
            rows = step.logit_rows if logits else step.tokens
            pieces = _column_pieces(rows, columns)
            return Amount(rows=rows, touched=rows * row_bytes, pieces=pieces, repeated=rows * repeated)

        self.operations.append(Operation(name, "rows", amount))

    def _runs(self, name: str, heads: int, row_bytes: int) -> None:
        """Heads of tokens that lie on one page."""

        def amount(step: StepWork) -> Amount:
            pieces = heads * sum(-(-count // PAGE_SIZE) for _, count in step.sequences)
            return Amount(rows=step.tokens, touched=step.tokens * row_bytes, pieces=pieces)

        self.operations.append(Operation(name, "rows", amount))

    def _add(
        self, name: str, kind: Kind, amount: Callable[[StepWork], Amount], weight: PackedMatrix, widened: bool
    ) -> None:
        held = f"{weight.format}/{weight.group}" if weight.group else weight.format
        self.operations.append(Operation(name, kind, amount, held, "bf16" if widened else weight.format))


class CountingBuilder(ProgramBuilder):
    """Records as the builder that it extends, and counts instead of building."""

    def count(self, ranks: Sequence[int], rank: int) -> list[Operation]:
        """The operations of the forward pass that was appended; `ranks` are the cores of each."""
        program = CountingProgram(self, ranks, rank)
        for node in self._nodes:
            node.emit(cast("Program", program))
        return program.operations


def _column_pieces(rows: int, columns: int) -> float:
    return max(rows * columns / _LANES, 1)


def kv_bytes_per_token(kv_heads: int, head_dim: int, dtype: KvCacheDtype, *, latent: bool) -> int:
    """Of one layer: a key and a value for each head, or a latent, which is both. Codes of a byte have a scale."""
    head = padded(head_dim)
    head_bytes = head * _BF16 if dtype == "bf16" else head + _BF16
    return (1 if latent else 2) * kv_heads * head_bytes
