"""What every part of the Program builder records with: operations on named buffers, and what is shared between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from numaserve.kernels import PackedMatrix, Program, Team, Vector
from numaserve.shm_comm import Ring
from numaserve.workers.program.buffers import PARTIAL_EXTRA, Buffer, Operand, Partial, Quantized, Tensor, padded
from numaserve.workers.settings import DEFAULT_SETTINGS, ModelSettings

Activation = Literal["silu", "gelu_tanh"]
INTEGER_GROUPS = frozenset({"int4", "int8_group", "mxfp4"})  # weight formats that take activations in int8 or bf16


@dataclass(frozen=True)
class ProgramLimits:
    """Sizes a Program is made for."""

    max_step_tokens: int
    max_logit_rows: int
    max_slots: int
    pages_per_slot: int
    num_pages: int


@dataclass(frozen=True)
class RankShape:
    """What of the model this rank holds."""

    q_heads: int
    kv_heads: int
    head_dim: int
    num_layers: int
    hidden_size: int
    vocab_bounds: Sequence[int]  # world size + 1 boundaries of the ranks' parts of the vocabulary
    # Of a latent cache, whose one KV head is `head_dim` wide: the first so many dimensions are the values. 0: none.
    value_dim: int = 0
    head_bounds: Sequence[int] = ()  # and world size + 1 boundaries of the ranks' query heads
    latent_bounds: Sequence[int] = ()  # the same of what makes latents, where each rank makes a part of them


@dataclass
class _Recorded:
    emit: Callable[[Program], None]
    buffers: list[Buffer]


@dataclass
class Recorder:
    """Records operations. `ring` is None with one rank."""

    shape: RankShape
    limits: ProgramLimits
    team: Team
    ring: Ring | None = None
    settings: ModelSettings = DEFAULT_SETTINGS
    _nodes: list[_Recorded] = field(default_factory=list)
    _collectives: int = 0

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
        in_int8, widened = self._taken(weight)
        return self._quantized(x, weight, logits) if in_int8 else x, widened

    def _taken(self, weight: PackedMatrix) -> tuple[bool, bool]:
        """Whether activations are quantised for `weight`, and whether its codes are widened to bf16 ones."""
        groups = weight.format in INTEGER_GROUPS
        widened = groups and self.settings.formats.activations == "bf16"
        return (groups or weight.format == "int8") and not widened, widened

    def _quantized(self, x: Operand, weight: PackedMatrix, logits: bool) -> Quantized:
        """`x` in int8 as `weight` wants it, made once whatever the number of products that read it."""
        found = x.quantized.get(weight.group)
        if found is not None:
            return found
        out = x.quantized[weight.group] = Quantized(x.rows, weight.k, 1, group=weight.group)
        if x.norm_index >= 0 and x.by_norm is None and not logits:
            x.by_norm = out
            out.first_use = out.last_use = x.norm_index
            self._nodes[x.norm_index].buffers.append(out)
        else:
            per_token = x.rows_per_token
            self._record(lambda p: p.quantize(x.place, out.quantized_place, per_token, logits), x, out)
        return out

    def _partial(self) -> Partial:
        partial = Partial(self.limits.max_step_tokens, self.shape.hidden_size, 4)
        self._claim_collective(partial)
        return partial

    def _attention_partial(self, value_dim: int) -> Tensor:
        """Room for results of attention that are still to be merged."""
        return Tensor(Program.partial_rows(self.limits.pages_per_slot), padded(value_dim) + PARTIAL_EXTRA, 4)

    def _claim_collective(self, buffer: Buffer) -> None:
        if self.ring is None:
            return
        needed = buffer.nbytes
        if needed > self.ring.slot_bytes:
            raise ValueError(f"a collective of {needed} bytes does not fit a ring slot of {self.ring.slot_bytes}")
        buffer.collective = self._collectives
        self._collectives += 1

    def _record(self, emit: Callable[[Program], None], *buffers: Buffer) -> int:
        index = len(self._nodes)
        used = [buffer.whole for buffer in buffers]
        for buffer in used:
            buffer.first_use = index if buffer.first_use < 0 else buffer.first_use
            buffer.last_use = index
        self._nodes.append(_Recorded(emit, used))
        return index
