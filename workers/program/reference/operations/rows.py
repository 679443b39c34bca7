"""Operations that take each row for itself."""

from collections.abc import Callable

import torch
from numaserve.workers.program.buffers import Persistent
from numaserve.workers.program.cost import BF16
from numaserve.workers.program.ops.rows import (
    Embed,
    Gather,
    Given,
    GroupNorm,
    Keep,
    LayerNorm,
    Multiply,
    Pool,
    Pooled,
    Pooling,
    Quantize,
    QuantizeHeads,
    RmsNorm,
    TokenRows,
)
from numaserve.workers.program.reference.operations.products import gate_factor
from numaserve.workers.program.reference.run import Run


def embed(run: Run, op: Embed) -> None:
    """Rows of the table; zeros for tokens of other ranks."""
    table, wanted = run.weights.values(op.table), torch.tensor(run.step.indices(op.index)) - op.first_row
    mine = (wanted >= 0) & (wanted < len(table))
    rows = table.new_zeros(len(wanted), table.shape[1])
    rows[mine] = table[wanted[mine]] * op.scale
    run.put(op.out, run.get(op.out) + rows if op.accumulate else rows)


def given(run: Run, op: Given) -> None:
    """The rows that were filled in from outside."""
    rows = torch.from_numpy(run.outside.given(op.name))
    if isinstance(op.out, Persistent):
        run.put(op.out, rows.view(torch.bfloat16))  # not widened: a step reads few of many rows
    else:
        run.put(op.out, rows[: len(run.step.tokens)].to(run.numbers.dtype))


def keep(run: Run, op: Keep) -> None:
    """Copy the rows, in bf16 or fp32, to the memory that is read from outside."""
    in_bf16 = op.x.itemsize == BF16
    rows = run.get(op.x).to(torch.bfloat16 if in_bf16 else torch.float32)
    run.outside.kept(op.name)[: len(rows)] = (rows.view(torch.uint16) if in_bf16 else rows).numpy()


def rms_norm(run: Run, op: RmsNorm) -> None:
    """The norm of each row in bf16, or the row itself, and the same in int8 where that is wanted."""
    x, weight = run.get(op.x), run.optional(op.weight)
    out = run.numbers.bf16(x if weight is None else normed(x, weight, op.eps))
    run.put(op.out, out)
    if op.quantized is not None:
        run.put(op.quantized, run.numbers.int8(out, op.quantized.group))


def layer_norm(run: Run, op: LayerNorm) -> None:
    """The layer norm of each row."""
    weight, bias = run.weights.values(op.weight), run.optional(op.bias)
    out = torch.nn.functional.layer_norm(run.get(op.x), (op.x.cols,), weight, bias, op.eps)
    run.put(op.out, run.numbers.bf16(out) if op.out.itemsize == BF16 else out)


def group_norm(run: Run, op: GroupNorm) -> None:
    """The norm of each group of columns."""
    groups = run.get(op.x).split([weight.size for weight in op.weights], dim=1)
    norms = [normed(x, run.weights.values(each), op.eps) for x, each in zip(groups, op.weights, strict=True)]
    run.put(op.out, run.numbers.bf16(torch.cat(norms, dim=1)))


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x` [..., columns] at a root mean square of one, times `weight`."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def quantize(run: Run, op: Quantize) -> None:
    """Rows in int8, each with a scale of its own, or one for each of its groups."""
    run.put(op.out, run.numbers.int8(run.get(op.x), op.out.group))


def quantize_heads(run: Run, op: QuantizeHeads) -> None:
    """Rows in int8, each head with scales of its own."""
    x = run.get(op.x)
    heads = x.reshape(len(x), op.out.heads, op.x.cols // max(op.out.heads, 1))
    run.put(op.out, run.numbers.int8(heads, op.out.group).flatten(1))


def multiply(run: Run, op: Multiply) -> None:
    """The product of a tensor and the activation of another one, or the activation alone."""
    y = run.get(op.y)
    factor = y if op.activation == "none" else gate_factor(y, op.activation)
    product = factor if op.x is None else run.get(op.x) * factor
    run.put(op.out, run.numbers.bf16(product) if op.out.itemsize == BF16 else product)


def gather(run: Run, op: Gather) -> None:
    """Rows that want logits."""
    run.put(op.out, run.get(op.x)[[each.row for each in run.step.logit_rows]])


_POOLINGS: dict[Pooling, Callable[[torch.Tensor], torch.Tensor]] = {
    "last": lambda rows: rows[-1],
    "cls": lambda rows: rows[0],
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.amax(0),
}


def pool(run: Run, op: Pool) -> None:
    """The vectors of sequences that end here; what follows sees a step of these."""
    pooled, x = run.step.pooled, run.get(op.x)
    weight = run.optional(op.weight)
    rows = x if weight is None else normed(x, weight, op.eps)
    parts = (rows[each.row : each.last_row + 1] for each in pooled)
    out = torch.stack([_POOLINGS[op.pooling](part) for part in parts]) if pooled else x[:0]
    run.put(op.out, out)
    run.step = run.step.pooled_rows()


def token_rows(run: Run, op: TokenRows) -> None:
    """Round the rows of all tokens; what follows sees the whole step again. It runs in every step here."""
    run.put(op.out, run.numbers.bf16(run.get(op.x)))
    run.step = run.whole


def pooled(run: Run, op: Pooled) -> None:
    """Give the vectors of sequences back."""
    for sequence, values in zip(run.step.pooled, run.get(op.x).to(torch.float32), strict=True):
        run.pooled.append((sequence.index, values.numpy().tobytes()))
        if not torch.isfinite(values).all():
            run.spoiled.append(sequence.index)
