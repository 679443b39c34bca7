"""Operations that keep a state of each sequence."""

import numpy as np
import torch
from numaserve.workers.program.ops.recurrent import CausalConv
from numaserve.workers.program.reference.run import Run


def causal_conv(run: Run, op: CausalConv) -> None:
    """Each sequence's new inputs after those that its slot keeps, or after zeros at position 0."""
    x, behind = run.get(op.x), op.taps - 1
    weight = run.weights.values(op.weight).reshape(-1, op.taps)
    memory = run.states.memory(op.state)[0].view(np.float32)[:, : behind * x.shape[1]]
    states = torch.from_numpy(memory).unflatten(1, (behind, x.shape[1]))
    out = torch.zeros_like(x)
    for each in run.step.sequences:
        state = states[each.number].to(x.dtype) if each.start > 0 else x.new_zeros(behind, x.shape[1])
        rows = slice(each.row, each.row + each.count)
        inputs = torch.cat([state, x[rows]])
        out[rows] = torch.einsum("tcj,cj->tc", inputs.unfold(0, op.taps, 1), weight)
        states[each.number] = inputs[each.count :].to(torch.float32)
    bias = run.optional(op.bias)
    out = out if bias is None else out + bias
    run.put(op.out, torch.nn.functional.silu(out) if op.activation == "silu" else out)
