"""The base of the Program builder's parts: the list of operations, and quantized operands that they share."""

from dataclasses import dataclass, field

from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.program.buffers import (
    ATTENTION_BLOCK,
    ATTENTION_ROWS,
    CUT_SEQUENCES,
    PARTIAL_EXTRA,
    Buffer,
    Operand,
    Partial,
    Quantized,
    Tensor,
    padded,
)
from numaserve.workers.program.handles import INTEGER_GROUPS
from numaserve.workers.program.ops.adapters import Shrink, shrunk_columns
from numaserve.workers.program.ops.base import Matrix, Operation, Rope, Vector
from numaserve.workers.program.ops.latent import GatherColumns
from numaserve.workers.program.ops.products import Activation, Linear
from numaserve.workers.program.ops.rows import Quantize
from numaserve.workers.program.setup import ProgramSetup, RankShape


@dataclass
class Recorder:
    """Appends operations to `operations`."""

    setup: ProgramSetup
    operations: list[Operation] = field(default_factory=list, init=False)
    is_narrow: bool = field(default=False, init=False)  # whether operations work on the rows of logits alone
    # Rows of cosines and sines, of ropes whose tables are not read by position.
    rotary: dict[Rope, Tensor] = field(default_factory=dict, init=False)
    _quantized: dict[tuple[Operand, int], Quantized] = field(default_factory=dict, init=False)
    _gathered: dict[Operand, Operand] = field(default_factory=dict, init=False)  # rows of logits

    @property
    def shape(self) -> RankShape:
        """The sizes of this rank's part of the model."""
        return self.setup.shape

    @property
    def limits(self) -> Capacity:
        """Sizes the program is made for."""
        return self.setup.limits

    def _linear(
        self,
        name: str,
        x: Operand,
        weight: Matrix,
        out: Buffer,
        *,
        bias: Vector | None = None,
        activation: Activation = "none",
        logits: bool = False,
    ) -> None:
        shrunk = self._shrunk(x, weight)
        source, widened = self._operand(x, weight, logits)
        self.operations.append(
            Linear(
                name=name,
                x=source,
                weight=weight,
                out=out,
                bias=bias,
                activation=activation,
                widened=widened,
                logits=logits,
                adapters=weight.adapters,
                shrunk=shrunk,
            )
        )

    def _shrunk(self, x: Operand, weight: Matrix) -> Tensor | None:
        """The first half of the updates by adapters; None where `weight` has none."""
        adapters = weight.adapters
        if adapters is None:
            return None
        out = Tensor(x.rows, shrunk_columns(adapters), 4)
        # Before the rows are quantized, so that this and the product can still be joined.
        self.operations.append(Shrink(x=x, out=out, adapters=adapters))
        return out

    def _operand(self, x: Operand, weight: Matrix, logits: bool = False) -> tuple[Operand | Quantized, bool]:
        """The operand that `weight` is multiplied by, and whether its codes are widened to it."""
        in_int8, widened = self._taken(weight)
        return self._in_int8(x, weight, logits) if in_int8 else x, widened

    def _taken(self, weight: Matrix) -> tuple[bool, bool]:
        """Whether activations are quantized for `weight`, and whether its codes are widened to bf16 ones."""
        groups = weight.format in INTEGER_GROUPS
        widened = groups and weight.activations == "bf16"
        return (groups or weight.format == "int8") and not widened, widened

    def _whole_product(
        self, name: str, x: Operand, weight: Matrix, bounds: tuple[int, ...], bias: Vector | None = None
    ) -> Tensor:
        """A product, fp32 [tokens, columns], whole on every rank.

        `weight` and `bias` have this rank's rows, and `bounds` are world size + 1 boundaries of the ranks' rows; none
        where each rank has them all.
        """
        divided = self._in_ring and bool(bounds)
        part = Tensor(x.rows, weight.n, 4, divided)
        self._linear(name, x, weight, part, bias=bias)
        if not divided:
            return part
        return self._gather_columns(part, bounds)

    def _gather_columns(self, part: Tensor, bounds: tuple[int, ...]) -> Tensor:
        """The columns of all ranks, fp32, from each rank's part in the ring. `bounds` are world size + 1 boundaries."""
        out = Tensor(part.rows, bounds[-1], 4)
        self.operations.append(GatherColumns(message=part, out=out, bounds=bounds))
        return out

    def _in_int8(self, x: Operand, weight: Matrix, logits: bool) -> Quantized:
        """`x` in int8 as `weight` wants it, made once whatever the number of products that read it."""
        found = self._quantized.get((x, weight.group))
        if found is None:
            found = self._quantized[x, weight.group] = Quantized(x.rows, weight.k, 1, group=weight.group)
            self.operations.append(Quantize(x=x, out=found, rows_per_token=x.rows_per_token, logits=logits))
        return found

    @staticmethod
    def _require_gates(gate_up: Matrix, down: Matrix) -> None:
        """Raises `ValueError` where `gate_up` leaves columns unwritten that `down` reads, if only to multiply zeros."""
        if gate_up.n != 2 * padded(down.k):
            raise ValueError(
                f"the gate_up weight of {down.k} columns must have {2 * padded(down.k)} padded rows, not {gate_up.n}"
            )

    def _partial(self, columns: int | None = None) -> Partial:
        return Partial(self.limits.max_step_tokens, columns or self.shape.hidden_size, 4, self._in_ring)

    @property
    def _in_ring(self) -> bool:
        """Whether buffers of collectives lie in the ring."""
        return self.setup.ranks.world > 1

    def _attention_partial(self, value_dim: int) -> Tensor:
        """Room for results of attention that are still to be merged."""
        blocks = -(-self.limits.pages_per_slot * PAGE_SIZE // ATTENTION_BLOCK)
        return Tensor(CUT_SEQUENCES * ATTENTION_ROWS * blocks, padded(value_dim) + PARTIAL_EXTRA, 4)
