"""Operations that keep a state of each sequence."""

import numpy as np
import torch
from numaserve.workers.program.ops.recurrent import CausalConv
from numaserve.workers.program.reference.run import Run


def causal_conv(run: Run, op: CausalConv) -> None:
    """Each segment's inputs after those of the state that it begins with."""
    columns, behind = op.out.cols, op.taps - 1
    x, kept = run.get(op.x)[:, :columns], behind * columns
    weight = run.weights.values(op.weight).reshape(-1, op.taps)
    out = torch.zeros_like(x)
    for each in (segment for sequence in run.step.sequences for segment in sequence.segments):
        state = run.states.before(op.state, each).view(np.float32)[:kept]
        rows = slice(each.row, each.row + each.count)
        inputs = torch.cat([torch.from_numpy(state).view(behind, columns).to(x.dtype), x[rows]])
        if each.count:
            out[rows] = torch.einsum("tcj,cj->tc", inputs.unfold(0, op.taps, 1), weight)
        after = inputs[each.count :].to(torch.float32).numpy()
        run.states.after(op.state, each).view(np.float32)[:kept] = after.reshape(-1)
    bias = run.optional(op.bias)
    out = out if bias is None else out + bias
    run.put(op.out, torch.nn.functional.silu(out) if op.activation == "silu" else out)
