"""The Program builder: the vocabulary in which a model's forward pass is written.

A family's `forward` calls the methods of `ProgramBuilder` once, at load. They record operations on named buffers;
`build` then lays the buffers out in one arena, sharing memory between buffers that are never alive together, and hands
a flat list of nodes to native code. A step runs that list in one native call.

Shapes: `tokens` is the number of new tokens of a step, at most `max_step_tokens`. Buffers are row-major with rows
padded to a multiple of 32 columns, and a multiple of 32 rows of room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from numaserve.kernels import PackedMatrix, Program, RopeTable, Team, Vector
from numaserve.shm_comm import Ring
from numaserve.workers.buffers import (
    Buffer,
    Logits,
    Operand,
    Partial,
    Quantized,
    Residual,
    Tensor,
    in_arena,
    padded,
    plan_arena,
)
from numaserve.workers.protocol import ActivationDtype, KvCacheDtype

Activation = Literal["silu", "gelu_tanh"]
INTEGER_GROUPS = frozenset({"int4", "int8_group"})  # weight formats that take activations in int8 or bf16


@dataclass(frozen=True)
class ProgramLimits:
    """Sizes a Program is made for."""

    max_step_tokens: int
    max_logit_rows: int
    max_slots: int
    pages_per_slot: int
    num_pages: int
    kv_cache_dtype: KvCacheDtype = "bf16"


@dataclass(frozen=True)
class RankShape:
    """What of the model this rank holds."""

    q_heads: int
    kv_heads: int
    head_dim: int
    num_layers: int
    hidden_size: int
    vocab_bounds: Sequence[int]  # world size + 1 boundaries of the ranks' parts of the vocabulary


@dataclass
class _Recorded:
    emit: Callable[[Program], None]
    buffers: tuple[Buffer, ...]


@dataclass
class ProgramBuilder:
    """Records a forward pass; see the module's documentation. `ring` is None with one rank.

    `activation_dtype`: what weights of 4 or 8 bits in groups are multiplied by.
    """

    shape: RankShape
    limits: ProgramLimits
    team: Team
    ring: Ring | None = None
    activation_dtype: ActivationDtype = "bf16"
    _nodes: list[_Recorded] = field(default_factory=list)
    _collectives: int = 0

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

    def rms_norm(self, x: Residual, weight: Vector, eps: float) -> Operand:
        """bf16 [tokens, hidden]."""
        out = Operand(x.rows, x.cols, 2)
        self._record(lambda p: p.rms_norm(x.place, weight, out.place, eps), x, out)
        return out

    def linear(self, x: Operand, weight: PackedMatrix, bias: Vector | None = None) -> Tensor:
        """fp32 [tokens, n] = x · weightᵀ + bias."""
        out = Tensor(x.rows, weight.n, 4)
        self._linear("linear", x, weight, out, bias=bias)
        return out

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
        self, q: Tensor, *, layer: int, scale: float, window: int | None = None, softcap: float | None = None
    ) -> Operand:
        """Causal attention over all tokens of each sequence so far: bf16 [tokens, q_heads * head_dim]."""
        out = Operand(q.rows, self.shape.q_heads * self.shape.head_dim, 2)
        partial = self._attention_partial()
        self._record(
            lambda p: p.attention(q.place, out.place, partial.place, layer, scale, window or 0, softcap or 0.0),
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
            layers=self.shape.num_layers,
            kv_dtype=self.limits.kv_cache_dtype,
            arena_bytes=plan_arena(buffers),
        )
        for node in self._nodes:
            node.emit(program)
        program.set_collectives(self._collectives)
        return program

    def _linear(
        self,
        name: str,
        x: Operand,
        weight: PackedMatrix,
        out: Buffer,
        *,
        bias: Vector | None = None,
        activation: str = "none",
        logits: bool = False,
    ) -> None:
        source, widened = self._operand(x, weight, logits)
        self._record(
            lambda p: p.linear(name, source.place, weight, bias, activation, widened, False, logits, out.place),
            source,
            out,
        )

    def _operand(self, x: Operand, weight: PackedMatrix, logits: bool = False) -> tuple[Tensor, bool]:
        """What `weight` is multiplied by, and whether its codes are widened to that."""
        if weight.format in INTEGER_GROUPS and self.activation_dtype == "bf16":
            return x, True
        return self._quantized(x, weight, logits) if weight.format in ("int8", *INTEGER_GROUPS) else x, False

    def _quantized(self, x: Operand, weight: PackedMatrix, logits: bool) -> Quantized:
        """`x` in int8 as `weight` wants it, made once whatever the number of products that read it."""
        found = x.quantized.get(weight.group)
        if found is None:
            found = x.quantized[weight.group] = out = Quantized(x.rows, weight.k, 1, group=weight.group)
            self._record(lambda p: p.quantize(x.place, out.place, out.cols, out.group, logits), x, out)
        return found

    def _partial(self) -> Partial:
        partial = Partial(self.limits.max_step_tokens, self.shape.hidden_size, 4)
        self._claim_collective(partial)
        return partial

    def _claim_collective(self, buffer: Buffer) -> None:
        if self.ring is None:
            return
        needed = buffer.nbytes
        if needed > self.ring.slot_bytes:
            raise ValueError(f"a collective of {needed} bytes does not fit a ring slot of {self.ring.slot_bytes}")
        buffer.collective = self._collectives
        self._collectives += 1

    def _attention_partial(self) -> Tensor:
        rows = Program.partial_rows(self.limits.pages_per_slot)
        return Tensor(rows, padded(self.shape.head_dim) + 16, 4)

    def _record(self, emit: Callable[[Program], None], *buffers: Buffer) -> None:
        index = len(self._nodes)
        for buffer in buffers:
            buffer.first_use = index if buffer.first_use < 0 else buffer.first_use
            buffer.last_use = index
        self._nodes.append(_Recorded(emit, buffers))
