"""Cases of mixtures of experts: the routes of tokens, products of their rows, and the weighted sums of these."""

import kernel_reference as reference
import numpy as np
from kernel_ops import packed
from kernel_reference import BF16, F32, FP32, U16, Bounded, from_bf16, to_bf16
from numaserve.workers.program.buffers import Residual, Tensor
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.recording.experts import ExpertMatrices, Router
from one_operation import Case, normal, table

Rng = np.random.Generator
Mlp = tuple[U16, U16, U16]  # gate, up, down
INNER, SHARED = 32, 96


def mixture(rng: Rng, tokens: int, hidden: int, held: range, rule: Routing) -> Case:
    """The sum of a token's experts, those `held`, and of a shared one, added to a stream. Logits are the first columns
    of a token, so far apart that no rounding changes a choice."""
    count, x = rule.num_experts, normal(rng, tokens, hidden)
    x[:, :count] = rng.permuted(np.tile(np.arange(count) / 8 - 2, (tokens, 1)), axis=1)
    x, stream = from_bf16(to_bf16(x)), normal(rng, tokens, hidden)
    router = np.eye(count + rule.shared_gate, hidden)
    experts = [mlp(rng, hidden, INNER) for _ in held]
    shared = mlp(rng, hidden, SHARED) if rule.shared_gate else None

    def record(b: ProgramBuilder, x: Tensor, stream: Residual) -> Residual:
        halves = [(packed(*each[:2]), packed(each[2])) for each in [*experts, *([shared] if shared else [])]]
        matrices = [
            ExpertMatrices(each[: len(held)], each[-1] if shared else None) for each in zip(*halves, strict=True)
        ]
        gates = Router(packed(to_bf16(router)))
        made = b.experts(b.rounded(x), rule, gates, held=held, gate_up=matrices[0], down=matrices[1])
        b.add_all_reduce(stream, made)
        return stream

    scores, _ = reference.expert_scores(x[:, :count], rule, None)
    weights = np.where(scores >= np.sort(scores, axis=1)[:, -rule.top_k, None], scores, 0.0)
    weights = weights / (weights.sum(1, keepdims=True) if rule.renormalize else 1.0) * rule.scale
    terms = []
    for expert, matrices in zip(held, experts, strict=True):
        weight = weights[:, expert, None]
        if rule.weighs_input:  # a rounding may fall otherwise
            value, bound = applied((x * weight.astype(np.float32)).astype(np.float32), matrices, 2 * BF16)
            terms.append((value * (weight > 0), bound * (weight > 0)))
        else:
            value, bound = applied(x, matrices)
            terms.append((value * weight, bound * weight + 1e-5 * np.abs(value) * weight))
    if shared:
        gate = 1 / (1 + np.exp(-x[:, count, None].astype(np.float64)))
        terms.append(tuple(each * gate for each in applied(x, shared)))
    value, bound = (stream + sum(each[0] for each in terms), sum(each[1] for each in terms))
    sizes = np.abs(stream) + sum(np.abs(each[0]) for each in terms)
    exact = value, bound + (rule.top_k + 8) * FP32 * sizes
    return Case(given={"x": x, "stream": stream}, hidden=hidden, record=record, expected=[exact])


def mlp(rng: Rng, hidden: int, inner: int) -> Mlp:
    gate, up = (to_bf16(normal(rng, inner, hidden) * hidden**-0.5) for _ in range(2))
    return gate, up, to_bf16(normal(rng, hidden, inner) * inner**-0.5)


def applied(x: F32, matrices: Mlp, slack: float = 0.0) -> Bounded:
    """The results of an expert for rows in bf16, whose roundings may differ by `slack` of their size."""
    gate, up, down = matrices
    off = [slack * np.abs(x) @ np.abs(from_bf16(each)).T.astype(np.float64) for each in (gate, up)]
    sums = [reference.matmul(to_bf16(x), each) for each in (gate, up)]
    hidden, bound = reference.gated_sums(*((s[0], s[1] + o) for s, o in zip(sums, off, strict=True)), "silu")
    weights = from_bf16(down).astype(np.float64)
    size = bound + reference.accumulation(INNER) * np.abs(hidden)
    return hidden @ weights.T, size @ np.abs(weights).T


def rule(top_k: int, num_experts: int, **how: bool) -> Routing:
    return Routing(num_experts=num_experts, top_k=top_k, **how)


CASES = table(
    mixture,
    (1, 100, range(16), rule(8, 16)),
    (5, 64, range(7), rule(1, 7, shared_gate=True)),
    (9, 576, range(2, 9), rule(4, 12, shared_gate=True, renormalize=False)),
    (40, 64, range(5), rule(2, 5)),
    (150, 96, range(4), rule(2, 4, shared_gate=True)),
    (33, 96, range(1, 6), rule(3, 6, weighs_input=True)),
    (3, 5120, range(2), rule(1, 2, weighs_input=True)),
)
