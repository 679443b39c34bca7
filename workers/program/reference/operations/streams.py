"""Operations around the residual stream."""

import torch
from numaserve.workers.program.ops.streams import AddNorm, LayerInputs, Narrow
from numaserve.workers.program.reference.operations.rows import normed
from numaserve.workers.program.reference.run import Run


def narrow(run: Run, op: Narrow) -> None:
    """The rows that want logits; what follows sees a step of these."""
    rows = [each.row for each in run.step.logit_rows]
    run.put(op.out, run.get(op.x)[rows])
    if op.beside is not None and op.beside_out is not None:
        run.put(op.beside_out, run.get(op.beside)[rows])
    run.step = run.step.narrowed()


def add_norm(run: Run, op: AddNorm) -> None:
    """The stream and the norm, scaled."""
    total = run.get(op.residual) + normed(run.get(op.x), run.weights.values(op.weight), op.eps)
    scale = run.optional(op.scale)
    run.put(op.residual, total if scale is None else total * scale)


def layer_inputs(run: Run, op: LayerInputs) -> None:
    """Norms of the layers' columns, plus rows of the table; nothing for tokens that it does not have."""
    x, weight, table = run.get(op.x), run.weights.values(op.weight), run.weights.values(op.table)
    tokens = torch.tensor(run.step.tokens)
    rows = table[tokens.clamp(0, len(table) - 1)].masked_fill((tokens >= len(table))[:, None], 0.0)
    norms = normed(x.unflatten(1, (x.shape[1] // len(weight), len(weight))), weight, op.eps)
    run.put(op.out, norms.flatten(1) + rows * op.scale)
