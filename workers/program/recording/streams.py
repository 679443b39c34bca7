"""Inputs of layers and norms around the residual stream, in the vocabulary of the Program builder."""

from numaserve.workers.program.buffers import Operand, Residual, Tensor
from numaserve.workers.program.ops.base import Matrix, Vector
from numaserve.workers.program.ops.streams import AddNorm, LayerInputs, Narrow
from numaserve.workers.program.recording.recorder import Recorder


class StreamRecorder(Recorder):
    """Records operations around the residual stream."""

    def layer_inputs(
        self,
        x: Operand,
        projection: Matrix,
        table: Matrix,
        norm: Vector,
        *,
        eps: float,
        scale: float,
        bounds: tuple[int, ...],
    ) -> Tensor:
        """The inputs of all layers: fp32 [tokens, layers * width], whole on every rank; see `LayerInputs`.

        `projection` [columns, hidden] and `table` [vocabulary, columns] have this rank's columns, those of some layers.
        `bounds` are world size + 1 boundaries of the ranks' columns.
        """
        divided, columns = self._in_ring, projection.n
        projected, part = Tensor(x.rows, columns, 4), Tensor(x.rows, columns, 4, divided)
        self._linear("linear", x, projection, projected)
        self.operations.append(LayerInputs(x=projected, out=part, weight=norm, eps=eps, table=table, scale=scale))
        if not divided:
            return part
        return self._gather_columns(part, bounds)

    def narrow(self, residual: Residual, inputs: Tensor | None) -> tuple[Residual, Tensor | None]:
        """The rows of the residual stream, and of the layers' inputs, that want logits. All that is recorded after this
        works on these rows alone, and must store nothing for later tokens."""
        rows = self.limits.max_logit_rows
        out = Residual(rows, residual.cols, 4)
        inputs_out = None if inputs is None else Tensor(rows, inputs.cols, 4)
        self.operations.append(Narrow(x=residual, out=out, beside=inputs, beside_out=inputs_out))
        self.is_narrow = True
        return out, inputs_out

    def add_norm(
        self, residual: Residual, x: Residual, weight: Vector, eps: float, *, scale: Vector | None = None
    ) -> None:
        """residual = (residual + the norm of x) * scale."""
        self.operations.append(AddNorm(x=x, residual=residual, weight=weight, eps=eps, scale=scale))
