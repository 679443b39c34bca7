"""Operations that keep a state of each sequence."""

from collections.abc import Callable

import numpy as np
import torch
from numaserve.workers.program.caches import DeltaHeads
from numaserve.workers.program.ops.recurrent import (
    CausalConv,
    GatedDelta,
    GatedHeadNorm,
    KeyDecays,
    KeyDelta,
    SigmoidGate,
    StateSpace,
)
from numaserve.workers.program.reference.operations.rows import normed
from numaserve.workers.program.reference.run import Run

_NORM_EPS = 1e-6  # of queries and keys


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


def gated_delta(run: Run, op: GatedDelta) -> None:
    """The rule token by token; between segments states are fp32."""
    heads = op.heads
    q, k, v = _heads_of(run.get(op.x), heads)
    q, k = _unit(q) * heads.key_dim**-0.5, _unit(k)
    b, a = run.get(op.gates).chunk(2, dim=1)
    steps = torch.nn.functional.softplus(a + run.weights.values(op.decay_bias))
    decays, rates = torch.exp(run.weights.values(op.decay) * steps), torch.sigmoid(b)

    def token(state: torch.Tensor, row: int) -> torch.Tensor:
        state = state * decays[row, :, None, None]
        learned = rates[row, :, None] * (v[row] - _recalled(state, k[row]))
        return state + k[row, :, :, None] * learned[:, None]

    run.put(op.out, _applied(run, op, q, token))


def state_space(run: Run, op: StateSpace) -> None:
    """The rule token by token; between segments states are fp32."""
    c, b, x = _heads_of(run.get(op.x), op.heads)
    steps = torch.nn.functional.softplus(run.get(op.gates) + run.weights.values(op.decay_bias))
    steps = steps.clamp(op.least_step, op.most_step)
    decays, added = torch.exp(run.weights.values(op.decay) * steps), x * steps[:, :, None]

    def token(state: torch.Tensor, row: int) -> torch.Tensor:
        return state * decays[row, :, None, None] + b[row, :, :, None] * added[row, :, None]

    skipped = x * run.weights.values(op.skip)[:, None]
    run.put(op.out, _applied(run, op, c, token) + skipped.flatten(1))


def key_decays(run: Run, op: KeyDecays) -> None:
    """b, then the decays."""
    steps = torch.nn.functional.softplus(run.get(op.x) + run.weights.values(op.bias))
    decay = run.weights.values(op.decay)
    decays = torch.exp(decay.repeat_interleave(steps.shape[1] // max(len(decay), 1)) * steps)
    run.put(op.out, torch.cat([run.get(op.b), decays], dim=1))


def key_delta(run: Run, op: KeyDelta) -> None:
    """The rule token by token; between segments states are fp32."""
    heads, gates = op.heads, run.get(op.gates)
    q, k, v = _heads_of(run.get(op.x), heads)
    q, k = _unit(q) * heads.key_dim**-0.5, _unit(k)
    rates = torch.sigmoid(gates[:, : heads.values])
    decays = gates[:, heads.values :].reshape(len(gates), heads.values, heads.key_dim)

    def token(state: torch.Tensor, row: int) -> torch.Tensor:
        state = state * decays[row, :, :, None]
        learned = rates[row, :, None] * (v[row] - _recalled(state, k[row]))
        return state + k[row, :, :, None] * learned[:, None]

    run.put(op.out, _applied(run, op, q, token))


def gated_head_norm(run: Run, op: GatedHeadNorm) -> None:
    """The norm of each head, times silu or sigmoid of the gate."""
    x, weight = run.get(op.x), run.weights.values(op.weight)
    gated = normed(x.reshape(len(x), op.heads, len(weight)), weight, op.eps).reshape(x.shape)
    gate = torch.nn.functional.silu if op.by == "silu" else torch.sigmoid
    run.put(op.out, run.numbers.bf16(gated * gate(run.get(op.gate))))


def sigmoid_gate(run: Run, op: SigmoidGate) -> None:
    """The rows times the sigmoid of the gate."""
    run.put(op.x, run.numbers.bf16(run.get(op.x) * torch.sigmoid(run.get(op.gate))))


def _applied(
    run: Run,
    op: GatedDelta | StateSpace | KeyDelta,
    queries: torch.Tensor,
    token: Callable[[torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """The products of queries with the states [value heads, key_dim, value_dim] after each row, which `token` makes of
    those before: [tokens, value heads * value_dim]."""
    heads, first = op.heads, op.offset // 4
    kept = slice(first, first + heads.values * heads.key_dim * heads.value_dim)
    out = queries.new_zeros(len(queries), heads.values, heads.value_dim)
    for each in (segment for sequence in run.step.sequences for segment in sequence.segments):
        before = torch.from_numpy(run.states.before(op.state, each).view(np.float32)[kept])
        state = before.view(heads.values, heads.key_dim, heads.value_dim).to(out.dtype)
        for row in range(each.row, each.row + each.count):
            state = token(state, row)
            out[row] = _recalled(state, queries[row])
        run.states.after(op.state, each).view(np.float32)[kept] = state.to(torch.float32).numpy().reshape(-1)
    return out.flatten(1)


def _heads_of(x: torch.Tensor, heads: DeltaHeads) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of each value head, [tokens, value heads, dimensions]."""
    keys = heads.keys * heads.key_dim
    q, k, v = x.split([keys, keys, heads.values * heads.value_dim], dim=1)
    of_value = torch.arange(heads.values) * heads.keys // max(heads.values, 1)
    q, k = (each.reshape(len(x), heads.keys, heads.key_dim)[:, of_value] for each in (q, k))
    return q, k, v.reshape(len(x), heads.values, heads.value_dim)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _NORM_EPS)


def _recalled(state: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The values that states [heads, key_dim, value_dim] have for a key of each head."""
    return (state * key[:, :, None]).sum(1)
