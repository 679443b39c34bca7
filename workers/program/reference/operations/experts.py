"""Mixtures of experts."""

import torch
from numaserve.workers.program.buffers import Operand, padded
from numaserve.workers.program.ops.experts import CombineExperts, MultiplyExperts, RouteExperts, Routing
from numaserve.workers.program.reference.operations.products import activated
from numaserve.workers.program.reference.run import Run


def route_experts(run: Run, op: RouteExperts) -> None:
    """Rows of held experts below each other, tokens in order; routes by token, in the order of the experts."""
    logits, x, routing = run.get(op.logits), run.get(op.x), op.routing
    correction = run.optional(op.correction)
    chosen, weights = chosen_experts(logits[:, : routing.num_experts], routing, correction)
    factors = run.optional(op.factors)
    weights = weights if factors is None else weights * factors[chosen]
    rows = torch.full_like(chosen, -1)
    counts, taken, weighed = [0], [], []
    for expert in op.held:
        tokens, places = torch.nonzero(chosen == expert, as_tuple=True)
        rows[tokens, places] = counts[-1] + torch.arange(len(tokens))
        counts.append(counts[-1] + len(tokens))
        taken.append(tokens)
        weighed.append(weights[tokens, places, None])
    gate = torch.ones(len(x), 1, dtype=x.dtype)
    if routing.shared_gate:
        gate = torch.sigmoid(logits[:, routing.num_experts :])
    copied = x[torch.cat(taken)] if taken else x[:0]
    if routing.weighs_input and taken:
        copied = copied * torch.cat(weighed)
        if isinstance(op.sorted, Operand):
            copied = run.numbers.bf16(copied)
        weights = torch.ones_like(weights)
    run.put(op.sorted, copied)
    run.put(op.routes, torch.cat([rows.to(x.dtype), weights, gate], dim=1))
    run.put(op.counts, torch.tensor([counts]))


def chosen_experts(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token [tokens, top_k], in ascending order, and their weights, from logits [tokens, experts].

    The first of equal experts is chosen, and NaN before all numbers.
    """
    scores = torch.sigmoid(logits) if routing.scoring == "sigmoid" else torch.softmax(logits, dim=-1)
    choice = scores if correction is None else scores + correction
    choice = choice.masked_fill(choice.isnan(), torch.inf)
    if routing.num_groups > 1:
        groups = choice.unflatten(1, (routing.num_groups, -1)).sort(descending=True).values
        best = groups[..., 0] if routing.group_score == "max" else groups[..., :2].sum(-1)
        left_out = best.sort(descending=True, stable=True).indices[:, routing.top_groups :]
        hidden = torch.zeros_like(best, dtype=torch.bool).scatter(1, left_out, True)
        choice = choice.masked_fill(hidden.repeat_interleave(groups.shape[-1], dim=1), -torch.inf)
    chosen = choice.sort(descending=True, stable=True).indices[:, : routing.top_k].sort().values
    weights = scores.gather(1, chosen)
    if routing.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * routing.scale


def multiply_experts(run: Run, op: MultiplyExperts) -> None:
    """Each expert's rows through its matrix, and every token's row through the shared one's."""
    bounds = run.get(op.counts)[0].tolist()
    x, bias = run.get(op.x), run.optional(op.bias)
    made = []
    for index, weight in enumerate(op.weights):
        sums = x[bounds[index] : bounds[index + 1]] @ run.weights.values(weight).T
        if bias is not None:
            begin = index * padded(weight.n)
            sums = sums + bias[begin : begin + weight.n]
        made.append(_activated(run, op, sums, op.out.cols))
    run.put(op.out, torch.cat(made) if made else x.new_zeros(0, op.out.cols))
    if op.shared is not None and op.shared_x is not None and op.shared_out is not None:
        sums = run.get(op.shared_x) @ run.weights.values(op.shared).T
        run.put(op.shared_out, _activated(run, op, sums, op.shared_out.cols))


def _activated(run: Run, op: MultiplyExperts, sums: torch.Tensor, columns: int) -> torch.Tensor:
    return sums if op.activation == "none" else run.numbers.bf16(activated(sums, op.activation, columns, op.limit))


def combine_experts(run: Run, op: CombineExperts) -> None:
    """The weighted sum of each token's rows, in the order of the experts, then the shared expert's."""
    routes = run.get(op.routes)
    rows, weights, gate = routes[:, : op.top_k].long(), routes[:, op.top_k : 2 * op.top_k], routes[:, -1:]
    out = routes.new_zeros(len(routes), op.out.cols)
    if op.y in run.values and len(run.get(op.y)):
        y = run.get(op.y)
        for place in range(op.top_k):
            row, weight = rows[:, place], weights[:, place, None]
            out = out + torch.where(row[:, None] >= 0, y[row.clamp(min=0)] * weight, 0.0)
    if op.shared is not None:
        out = out + run.get(op.shared) * gate
    run.put(op.out, out, add=op.accumulate)
