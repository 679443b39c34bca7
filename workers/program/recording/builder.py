"""The Program builder: the vocabulary in which a model's forward pass is written.

A family's `forward` calls the methods of `ProgramBuilder` once, at load. They append operations on named buffers to a
list; `fuse` rewrites it to what kernels do at once, and an interpreter runs it or counts it.

Shapes: `tokens` is the number of new tokens of a step, at most `max_step_tokens`. Buffers are row-major with rows
padded to a multiple of 32 columns, and a multiple of 32 rows of room.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from numaserve.workers.program.buffers import (
    PAD,
    Columns,
    Logits,
    Operand,
    OperandColumns,
    Partial,
    Residual,
    Tensor,
    padded,
)
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.cost import OperationCost, of_logit_rows, of_merged_rows
from numaserve.workers.program.fuse import fuse
from numaserve.workers.program.ops.attention import Attention, HeadNorm, KvSource, RopeStore
from numaserve.workers.program.ops.base import Matrix, Operation, Rope, Vector
from numaserve.workers.program.ops.exchange import DividedNorm, Reduce, Sample
from numaserve.workers.program.ops.images import Merging
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.ops.rows import (
    Embed,
    Gather,
    Given,
    GroupNorm,
    Keep,
    LayerNorm,
    Multiply,
    Pool,
    RmsNorm,
    TokenRows,
)
from numaserve.workers.program.ops.streams import Narrow
from numaserve.workers.program.recording.experts import ExpertRecorder
from numaserve.workers.program.recording.images import ImageRecorder
from numaserve.workers.program.recording.latent import LatentRecorder
from numaserve.workers.program.recording.pooling import PoolRecorder
from numaserve.workers.program.recording.recurrent import RecurrentRecorder
from numaserve.workers.program.recording.streams import StreamRecorder
from numaserve.workers.program.slots import RowIndex


class ProgramBuilder(ExpertRecorder, ImageRecorder, LatentRecorder, PoolRecorder, RecurrentRecorder, StreamRecorder):
    """Records a forward pass; see the module's documentation."""

    def embed(
        self, table: Matrix, *, first_row: int, scale: float = 1.0, more: Sequence[tuple[RowIndex, Matrix, int]] = ()
    ) -> Residual:
        """Token embeddings times `scale`: [tokens, columns of `table`], which holds rows first_row... of the
        embedding. Rows of `more` tables are added: for each its index, the table and the index of its first row."""
        part = self._partial(table.k)
        self.operations.append(Embed(table=table, first_row=first_row, scale=scale, out=part))
        for index, other, first in more:
            self.add_rows(part, other, index=index, first_row=first)
        return self.summed(part)

    def add_rows(self, partial: Partial, table: Matrix, *, index: RowIndex, first_row: int) -> None:
        """Add the row at the `index` of each token to this rank's part of a sum. `table` has rows `first_row` ...;
        nothing is added for other rows."""
        self.operations.append(
            Embed(table=table, first_row=first_row, scale=1.0, index=index, accumulate=True, out=partial)
        )

    def rms_norm(self, x: Residual | Tensor, weight: Vector, eps: float) -> Operand:
        """The norm of `x`, which is fp32: bf16 [tokens, as many columns as the weight has]."""
        out = Operand(x.rows, x.cols, 2)
        self.operations.append(RmsNorm(x=x, out=out, weight=weight, eps=eps))
        return out

    def layer_norm(self, x: Residual | Tensor, weight: Vector, bias: Vector | None, eps: float) -> Operand:
        """The layer norm of `x`, which is fp32: bf16 [tokens, columns]."""
        out = Operand(x.rows, x.cols, 2)
        self.operations.append(LayerNorm(x=x, out=out, weight=weight, bias=bias, eps=eps))
        return out

    def normalize(self, residual: Residual, weight: Vector, bias: Vector | None, eps: float) -> None:
        """Put the layer norm of `residual` in its place."""
        self.operations.append(LayerNorm(x=residual, out=residual, weight=weight, bias=bias, eps=eps))

    def group_norm(self, x: Tensor, weights: Sequence[Vector], eps: float) -> Operand:
        """The norms of groups of columns of `x`, fp32, by the weight of each: bf16 of the same shape.

        Raises `ValueError` for groups of several sizes, or such that do not fill whole cache lines.
        """
        if len(weights) < 2:
            return self.rms_norm(x, weights[0], eps) if weights else self.rounded(x)
        if len({weight.size for weight in weights}) > 1 or weights[0].size % PAD:
            raise ValueError(f"groups of columns must have the same multiple of {PAD} columns")
        out = Operand(x.rows, x.cols, 2)
        self.operations.append(GroupNorm(x=x, out=out, weights=tuple(weights), eps=eps))
        return out

    def rounded(self, x: Residual | Tensor) -> Operand:
        """`x`, which is fp32, in bf16: [tokens, columns]."""
        out = Operand(x.rows, x.cols, 2)
        self.operations.append(RmsNorm(x=x, out=out, weight=None, eps=0.0))
        return out

    def multiply(self, x: Tensor, y: Tensor, activation: Activation = "none") -> Tensor:
        """x * activation(y), of fp32 [tokens, columns] each: fp32 of the same shape."""
        out = Tensor(x.rows, x.cols, 4)
        self.operations.append(Multiply(x=x, y=y, out=out, activation=activation))
        return out

    def activated(self, y: Residual | Tensor, activation: Activation) -> Tensor:
        """activation(y), of fp32 [tokens, columns]: fp32 of the same shape."""
        out = Tensor(y.rows, y.cols, 4)
        self.operations.append(Multiply(x=None, y=y, out=out, activation=activation))
        return out

    def multiply_rounded(self, x: Tensor, y: Tensor, activation: Activation = "none") -> Operand:
        """The same as `multiply` in bf16."""
        out = Operand(x.rows, x.cols, 2)
        self.operations.append(Multiply(x=x, y=y, out=out, activation=activation))
        return out

    def divided_norm(
        self, x: Tensor, weights: Sequence[Vector], *, counted: Sequence[int], columns: Sequence[int], eps: float
    ) -> None:
        """Norm vectors that the ranks divide, in place: the first columns of `x`, fp32, in the order of `weights`.

        `counted` are the columns of each, the last ones, that no lower rank has too, `columns` those of all ranks.
        """
        message = Tensor(x.rows, len(weights), 4, self._in_ring)
        operation = DividedNorm(
            x=x, message=message, weights=tuple(weights), counted=tuple(counted), columns=tuple(columns), eps=eps
        )
        self.operations.append(operation)

    def given(self, name: str, columns: int) -> Tensor:
        """Rows that are filled in from outside before each step: fp32 [tokens, columns]; see `OutsideRows`."""
        out = Tensor(self.limits.max_step_tokens, columns, 4)
        self.operations.insert(0, Given(name=name, out=out))  # nothing before may have its memory
        return out

    def given_stream(self, name: str, columns: int) -> Residual:
        """A residual stream that is filled in from outside before each step, as by `given`: equal on all ranks."""
        out = Residual(self.limits.max_step_tokens, columns, 4)
        self.operations.insert(0, Given(name=name, out=out))
        return out

    def keep(self, name: str, x: Residual | Tensor) -> None:
        """Let `x`, bf16 or fp32, be read from outside after each step, as it is at its end; see `OutsideRows`."""
        self.operations.append(Keep(name=name, x=x))

    def norms_beside(self, parts: Sequence[tuple[Residual | Tensor, Vector | None, float]]) -> Operand:
        """The norms of fp32 [tokens, columns] each, by weight and eps, concatenated: bf16 [tokens, all columns]. Parts
        without a weight are only rounded.

        Raises `ValueError` for columns that do not fill whole cache lines.
        """
        if any(x.cols % PAD for x, *_ in parts):
            raise ValueError(f"norms that write to one output must have a multiple of {PAD} columns")
        bounds = list(accumulate((x.cols for x, *_ in parts), initial=0))
        out = Operand(self.limits.max_step_tokens, bounds[-1], 2)
        for (x, weight, eps), (first, end) in zip(parts, pairwise(bounds), strict=True):
            self.operations.append(RmsNorm(x=x, out=self.columns(out, range(first, end)), weight=weight, eps=eps))
        return out

    def columns(self, x: Operand, chosen: range) -> Operand:
        """Some columns of `x`, which are not copied. Raises `ValueError` unless they begin at a cache line."""
        first = chosen.start if chosen else 0  # a rank without any columns begins after the last one
        if first % PAD:
            raise ValueError(f"the first column of a part of a matrix must be a multiple of {PAD}, not {first}")
        return x if len(chosen) == x.cols else OperandColumns(x.rows, len(chosen), 2, of=x, first=first)

    def summed(
        self, partial: Partial, post_norm: Vector | None = None, eps: float = 0.0, *, bias: Vector | None = None
    ) -> Residual:
        """post_norm?(the sum over ranks + bias) as a new residual stream: fp32 [tokens, columns]; `eps` is of the
        norm."""
        residual = Residual(self.limits.max_step_tokens, partial.cols, 4)
        self._reduce(residual, partial, assign=True, post_norm=post_norm, eps=eps, bias=bias)
        return residual

    def linear(self, x: Operand, weight: Matrix, bias: Vector | None = None) -> Tensor:
        """fp32 [tokens, n] = x · weightᵀ + bias."""
        out = Tensor(x.rows, weight.n, 4)
        self._linear("linear", x, weight, out, bias=bias)
        return out

    def split(self, x: Tensor, *widths: int) -> list[Tensor]:
        """Parts of `widths` columns of `x`, fp32, and a last one of the columns that are left. Nothing is copied."""
        bounds = [*accumulate(widths, initial=0), x.cols]
        return [Columns(x.rows, end - first, x.itemsize, of=x, first=first) for first, end in pairwise(bounds)]

    def linear_partial(self, x: Operand, weight: Matrix) -> Partial:
        """This rank's part of x · weightᵀ where the columns of `weight` are split over the ranks."""
        out = self._partial(weight.n)
        self._linear("linear_partial", x, weight, out)
        return out

    def gated_mlp(self, x: Operand, gate_up: Matrix, down: Matrix, activation: Activation) -> Partial:
        """(activation(gate) * up) · downᵀ; `gate_up` has panels of 16 gate and 16 up rows in turn,
        padded: rows of zeros up to a multiple of 32 each. Raises `ValueError` for another number of rows."""
        self._require_gates(gate_up, down)
        hidden = Operand(x.rows, down.k, 2)
        self._linear("gate_up", x, gate_up, hidden, activation=activation)
        return self.linear_partial(hidden, down)

    def plain_mlp(
        self, x: Operand, up: Matrix, down: Matrix, activation: Activation, up_bias: Vector | None = None
    ) -> Partial:
        """activation(x · upᵀ + up_bias) · downᵀ, of an activation that gates nothing."""
        hidden = Operand(x.rows, down.k, 2)
        self._linear("up", x, up, hidden, bias=up_bias, activation=activation)
        return self.linear_partial(hidden, down)

    def qkv_rope(
        self,
        qkv: Tensor,
        *,
        cache: CacheIndex,
        rope: Rope,
        norm: HeadNorm = "none",
        q_norm: Vector | None = None,
        k_norm: Vector | None = None,
        eps: float = 0.0,
        source: KvSource = "projected",
        norm_values: bool = False,
    ) -> Tensor:
        """Rotates the heads of `qkv`, stores K and V in their pages, and returns q in bf16; see `RopeStore`."""
        heads = self.shape.caches[cache.kind].heads
        q, rows = Tensor(qkv.rows, heads.query * padded(heads.dim), 2), self.rotary.get(rope)
        self.operations.append(
            RopeStore(
                qkv=qkv,
                q=q,
                cache=cache,
                rope=rope if rows is None else None,
                rope_rows=rows,
                norm=norm,
                q_norm=q_norm,
                k_norm=k_norm,
                eps=eps,
                source=source,
                norm_values=norm_values,
            )
        )
        return q

    def attention(
        self,
        q: Tensor,
        *,
        cache: CacheIndex,
        scale: float,
        value_scale: float = 1.0,
        softcap: float | None = None,
        sinks: Vector | None = None,
    ) -> Operand:
        """Causal attention over the tokens of each sequence so far: bf16 [tokens, query heads * dimensions of a value].

        Scores are multiplied by `scale`, values by `value_scale`. `sinks`, one for each head, are logits that take part
        in the softmax without a value."""
        heads = self.shape.caches[cache.kind].heads
        out = Operand(q.rows, heads.query * heads.values, 2)
        self.operations.append(
            Attention(
                q=q,
                out=out,
                partial=self._attention_partial(heads.values),
                cache=cache,
                scale=scale,
                softcap=softcap or 0.0,
                value_scale=value_scale,
                sinks=sinks,
            )
        )
        return out

    def add_all_reduce(
        self,
        residual: Residual,
        partial: Partial,
        *,
        eps: float = 0.0,
        post_norm: Vector | None = None,
        bias: Vector | None = None,
        scale: Vector | None = None,
    ) -> None:
        """residual = (residual + post_norm?(sum over ranks + bias)) * scale; `eps` is of the norm, and `scale` is one
        number, only with a norm."""
        self._reduce(residual, partial, eps=eps, post_norm=post_norm, bias=bias, scale=scale)

    def _reduce(self, residual: Residual, partial: Partial, *, post_norm: Vector | None, **more: Any) -> None:
        total = None if post_norm is None else Tensor(residual.rows, residual.cols, 4)
        self.operations.append(Reduce(partial=partial, residual=residual, sum=total, post_norm=post_norm, **more))

    def logit_rows(self, x: Operand) -> Operand:
        """The rows of `x` that want logits, gathered once."""
        if not self.is_narrow and x not in self._gathered:
            self._gathered[x] = Operand(self.limits.max_logit_rows, x.cols, 2)
            self.operations.append(Gather(x=x, out=self._gathered[x]))
        return self._gathered.get(x, x)

    def lm_head(self, x: Operand, weight: Matrix) -> Logits:
        """Logits of the rows that want a sample. `weight` holds this rank's rows of the vocabulary."""
        logits = Logits(self.limits.max_logit_rows, weight.n, 4, self._in_ring)
        self._linear("lm_head", self.logit_rows(x), weight, logits, logits=True)
        return logits

    def sample(self, logits: Logits, *, softcap: float | None = None) -> None:
        """Sample the rows of `logits`, after `softcap`; every rank gets to know the tokens."""
        tokens = Tensor(logits.rows, 1, 4, self._in_ring)
        bounds = tuple(self.shape.vocab_bounds)
        self.operations.append(Sample(logits=logits, tokens=tokens, vocab_first=bounds, softcap=softcap or 0.0))

    def fused(self) -> list[Operation]:
        """Return the recorded operations, fused as far as kernels exist."""
        return fuse(self.operations, self.setup.ranks)

    def costs(self) -> list[OperationCost]:
        """The costs of a step for this rank, operation by operation in order, but for those that run on request."""
        return [cost for _, costs in self.costed() for cost in costs]

    def costed(self) -> Iterator[tuple[Operation, Sequence[OperationCost]]]:
        """Yield the operations for this rank in order, each with its costs in a step: none for those that run on
        request."""
        is_on_request = False
        of_some: Callable[[OperationCost], OperationCost] | None = None
        for operation in self.fused():
            is_on_request = is_on_request or isinstance(operation, TokenRows)
            costs = [] if is_on_request else operation.cost(self.setup)
            yield operation, costs if of_some is None else [of_some(cost) for cost in costs]
            if isinstance(operation, Narrow | Pool):
                of_some = of_logit_rows
            elif isinstance(operation, Merging):
                of_some = partial(of_merged_rows, merged=operation.merged)
