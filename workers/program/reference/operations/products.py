"""Products with matrices, and the activations of gated MLPs."""

import torch
from numaserve.workers.program.ops.adapters import Shrink
from numaserve.workers.program.ops.products import HeadLinear, Linear
from numaserve.workers.program.reference.run import Run

_PANEL = 16  # rows of a gate, then as many of what it gates


def linear(run: Run, op: Linear) -> None:
    """x · weightᵀ + bias, with an activation that gates half as wide."""
    out = run.get(op.x) @ run.weights.values(op.weight).T
    bias = run.optional(op.bias)
    if bias is not None:
        out = out + bias
    if op.adapters is not None and op.shrunk is not None:
        shrunk = run.get(op.shrunk)
        for number, rows in run.step.rows_of_adapters().items():
            _, b = run.weights.adapter(op.adapters, number - 1)
            out[rows] += shrunk[rows, : b.shape[1]] @ b[: out.shape[1]].T
    if op.activation != "none":
        out = run.numbers.bf16(activated(out, op.activation, op.out.cols))
    run.put(op.out, out, add=op.accumulate)


def shrink(run: Run, op: Shrink) -> None:
    """scale * x · Aᵀ of the adapter of each row; rows without one are zero."""
    x = run.get(op.x)
    out = x.new_zeros(len(x), op.out.cols)
    for number, rows in run.step.rows_of_adapters().items():
        a, _ = run.weights.adapter(op.adapters, number - 1)
        out[rows, : len(a)] = x[rows] @ a[:, : x.shape[1]].T
    run.put(op.out, out)


def activated(x: torch.Tensor, activation: str, columns: int, limit: float = 0.0) -> torch.Tensor:
    """Sums after an activation: `columns` of them."""
    if activation == "relu2":
        return x.relu().square()
    if activation == "plain_gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    return torch.nn.functional.gelu(x) if activation == "gelu" else _gated(x, activation, columns, limit)


def _gated(x: torch.Tensor, activation: str, columns: int, limit: float) -> torch.Tensor:
    """activation(gate) * up, `columns` wide; x [rows, ...] has panels of gate and up in turn."""
    panels = x.unflatten(-1, (-1, 2, _PANEL))
    gate, up = (panels[:, :, half].flatten(1)[:, :columns] for half in (0, 1))
    if activation == "swiglu_oai":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    return gate_factor(gate, activation) * up


def gate_factor(gate: torch.Tensor, activation: str) -> torch.Tensor:
    """Silu, tanh, the positive part, or GELU, in the tanh approximation unless the activation is gelu or geglu."""
    if activation == "silu":
        return gate * torch.sigmoid(gate)
    if activation == "tanh":
        return torch.tanh(gate)
    if activation == "relu":
        return torch.relu(gate)
    if activation in ("gelu", "geglu"):
        return torch.nn.functional.gelu(gate)
    return torch.nn.functional.gelu(gate, approximate="tanh")


def head_linear(run: Run, op: HeadLinear) -> None:
    """Each head's columns through its rows; other columns of the result stay what they are."""
    x, heads = run.get(op.x), op.num_heads
    weight = run.weights.values(op.weight)
    weight = weight.reshape(heads, -1, op.weight.k) if heads else weight[None]
    made = torch.einsum("thk,hnk->thn", x.reshape(len(x), heads, op.weight.k), weight[:heads])
    before = run.values.get(op.out, x.new_zeros(len(x), op.out.cols)).reshape(len(x), heads, op.out_stride)
    out = torch.cat([run.numbers.bf16(made), before[..., made.shape[-1] :]], dim=-1)
    run.put(op.out, out.flatten(1))
