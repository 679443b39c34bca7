"""The Program builder: the vocabulary in which a model's forward pass is written.

A family's `forward` calls the methods of `ProgramBuilder` once, at load. They record operations on named buffers;
`build` then lays the buffers out in one arena, sharing memory between buffers that are never alive together, and hands
a flat list of nodes to native code. A step runs that list in one native call.

Shapes: `tokens` is the number of new tokens of a step, at most `max_step_tokens`. Buffers are row-major with rows
padded to a multiple of 32 columns, and a multiple of 32 rows of room.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from numaserve.kernels import PackedMatrix, Program, RopeTable, Vector
from numaserve.workers.program.buffers import (
    Buffer,
    Columns,
    Logits,
    Operand,
    Partial,
    Residual,
    Tensor,
    in_arena,
    padded,
    plan_arena,
)
from numaserve.workers.program.experts import MoeOperations
from numaserve.workers.program.latent import MlaOperations
from numaserve.workers.program.recorder import Activation, ProgramLimits, RankShape

__all__ = ["ProgramBuilder", "ProgramLimits", "RankShape"]


class ProgramBuilder(MoeOperations, MlaOperations):
    """Records a forward pass; see the module's documentation."""

    def embed(self, table: PackedMatrix, *, first_row: int, scale: float = 1.0) -> Residual:
        """Token embeddings times `scale`: [tokens, hidden]. `table` holds rows first_row... of the embedding."""
        residual = Residual(self.limits.max_step_tokens, self.shape.hidden_size, 4)
        out: Buffer = residual if self.ring is None else self._partial()
        self._record(lambda p: p.embed(table, first_row, scale, out.place), out)
        if self.ring is not None:
            self._record(
                lambda p: p.reduce(out.place, residual.place, residual.place, residual.cols, True, None, None, 0.0),
                out,
                residual,
            )
        return residual

    def rms_norm(self, x: Residual | Tensor, weight: Vector, eps: float) -> Operand:
        """bf16 [tokens, as many columns as the weight has]; x is fp32."""
        out = Operand(x.rows, x.cols, 2)

        def emit(p: Program) -> None:
            quantized = out.by_norm.quantized_place if out.by_norm else None
            p.rms_norm(x.place, weight, out.place, eps, quantized)

        out.norm_index = self._record(emit, x, out)
        return out

    def linear(self, x: Operand, weight: PackedMatrix, bias: Vector | None = None) -> Tensor:
        """fp32 [tokens, n] = x · weightᵀ + bias."""
        out = Tensor(x.rows, weight.n, 4)
        self._linear("linear", x, weight, out, bias=bias)
        return out

    def split(self, x: Tensor, *widths: int) -> list[Tensor]:
        """The columns of `x`, which is fp32, taken apart: that many each, the last part what is left. Nothing is
        copied."""
        bounds = [*accumulate(widths, initial=0), x.cols]
        return [Columns(x, first, end - first) for first, end in pairwise(bounds)]

    def linear_partial(self, x: Operand, weight: PackedMatrix) -> Partial:
        """This rank's part of x · weightᵀ where the columns of `weight` are split over the ranks."""
        out = self._partial()
        source, widened = self._operand(x, weight)

        def emit(p: Program) -> None:
            to = out.into or out
            accumulate = out.into is not None
            p.linear("linear_partial", source.place, weight, out.bias, "none", widened, accumulate, False, to.place)

        self._record(emit, source, out)
        return out

    def gated_mlp(self, x: Operand, gate_up: PackedMatrix, down: PackedMatrix, activation: Activation) -> Partial:
        """(activation(gate) * up) · downᵀ; `gate_up` has panels of 16 gate and 16 up rows in turn."""
        hidden = Operand(x.rows, down.k, 2)
        self._linear("gate_up", x, gate_up, hidden, activation=activation)
        return self.linear_partial(hidden, down)

    def qkv_rope(
        self,
        qkv: Tensor,
        *,
        layer: int,
        rope: RopeTable,
        q_norm: Vector | None = None,
        k_norm: Vector | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """Norms and rotates the heads of `qkv`, stores K and V in their pages, returns q in bf16."""
        head = padded(self.shape.head_dim)
        q = Tensor(qkv.rows, self.shape.q_heads * head, 2)
        self._record(lambda p: p.rope_store(qkv.place, q.place, layer, rope, q_norm, k_norm, eps), qkv, q)
        return q

    def attention(
        self,
        q: Tensor,
        *,
        layer: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Vector | None = None,
    ) -> Operand:
        """Causal attention over all tokens of each sequence so far: bf16 [tokens, q_heads * head_dim]. `sinks`, one for
        each head, are logits that take part in the softmax without a value."""
        out = Operand(q.rows, self.shape.q_heads * self.shape.head_dim, 2)
        partial = self._attention_partial(self.shape.head_dim)
        self._record(
            lambda p: p.attention(q.place, out.place, partial.place, layer, scale, window or 0, softcap or 0.0, sinks),
            q,
            out,
            partial,
        )
        return out

    def add_all_reduce(
        self,
        residual: Residual,
        partial: Partial,
        *,
        norm: Vector,
        eps: float,
        post_norm: Vector | None = None,
        bias: Vector | None = None,
    ) -> Operand:
        """residual += post_norm?(sum over ranks + bias); returns bf16 rms_norm(residual, norm)."""
        if self.ring is None and post_norm is None:
            partial.into, partial.bias = residual, bias
            return self.rms_norm(residual, norm, eps)
        scratch = Tensor(residual.rows, residual.cols, 4) if post_norm is not None else residual
        self._record(
            lambda p: p.reduce(
                partial.place, residual.place, scratch.place, residual.cols, False, bias, post_norm, eps
            ),
            partial,
            residual,
            scratch,
        )
        return self.rms_norm(residual, norm, eps)

    def lm_head(self, x: Operand, weight: PackedMatrix, *, softcap: float | None = None) -> Logits:
        """Logits of the rows that want a sample. `weight` holds this rank's rows of the vocabulary."""
        rows = self.limits.max_logit_rows
        gathered = Operand(rows, x.cols, 2)
        self._record(lambda p: p.gather(x.place, gathered.place), x, gathered)
        logits = Logits(rows, weight.n, 4)
        logits.softcap = softcap or 0.0
        self._claim_collective(logits)
        self._linear("lm_head", gathered, weight, logits, logits=True)
        return logits

    def sample(self, logits: Logits) -> None:
        """Sample the rows of `logits`; every rank gets to know the tokens."""
        tokens = Tensor(logits.rows, 1, 4)
        self._claim_collective(tokens)
        bounds = list(self.shape.vocab_bounds)
        self._record(lambda p: p.sample(logits.place, tokens.place, bounds, logits.softcap), logits, tokens)

    def build(self) -> Program:
        """Lay out the arena and make the native Program."""
        buffers = [buffer for node in self._nodes for buffer in node.buffers if in_arena(buffer)]
        program = Program(
            team=self.team,
            ring=self.ring,
            max_tokens=self.limits.max_step_tokens,
            max_logit_rows=self.limits.max_logit_rows,
            max_slots=self.limits.max_slots,
            pages_per_slot=self.limits.pages_per_slot,
            num_pages=self.limits.num_pages,
            vocabulary=self.shape.vocab_bounds[-1],
            q_heads=self.shape.q_heads,
            kv_heads=self.shape.kv_heads,
            head_dim=self.shape.head_dim,
            value_dim=self.shape.value_dim,
            context_parallel=self.native_context_parallel(),
            layers=self.shape.num_layers,
            kv_dtype=self.settings.kv_cache_dtype,
            arena_bytes=plan_arena(buffers),
        )
        for node in self._nodes:
            node.emit(program)
        program.set_collectives(self._collectives)
        return program
