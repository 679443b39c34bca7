"""A layer's mixture of experts: routing, the products with the experts of each token, their weighted sum.

Which experts are read depends on the tokens; what counts is the bytes of those that were. Weights and tokens are
random, so that the experts are chosen about evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from numaserve.kernels import Program, Team
from numaserve.workers.bench.programs import (
    Format,
    begin,
    built,
    copies_beyond_caches,
    make_builder,
    random_matrix,
    same_matrices,
    start_slot,
    timed_step,
    work_of_step,
)
from numaserve.workers.bench.rows import Ceiling, Effort, Rows, Work, timed_row
from numaserve.workers.models.decoder import experts
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.planning.roofline.expert_shapes import EXPERT_SHAPES, ExpertShape
from numaserve.workers.protocol import PAGE_SIZE
from numaserve.workers.weights.weights import DenseMlp, MoeWeights

_PRODUCTS = ("moe_gate_up", "moe_down")
_NODES = ("moe_route", *_PRODUCTS, "moe_combine")


def bench_experts(team: Team, effort: Effort, *, model: str, format: Format, m_values: Sequence[int]) -> Rows:
    """The operations of one layer's experts for M tokens."""
    shape = EXPERT_SHAPES[model]
    active = 3 * shape.hidden * shape.routing.intermediate_size * shape.routing.top_k
    layers = copies_beyond_caches(active)
    program = _program(team, shape, format, layers, max(m_values))
    for m in m_values:
        run = [(0, 0, m, False)]
        for node in _NODES:
            nbytes, flops = work_of_step(program, node, run)
            with Ceiling(partial(rank_ceilings, team, [format.name])) as ceiling:
                times = effort.repeat(partial(timed_step, program, node, run)).per(layers)
            work = Work(nbytes / layers, flops / layers, format.name)
            if node not in _PRODUCTS:
                # Rows that are copied, or summed.
                work = Work(4.0 * m * shape.routing.top_k * shape.hidden, format=format.name)
            what: dict[str, str | int] = {"model": model, "format": str(format), "operation": node, "M": m}
            yield timed_row(f"experts, {format}", what, times, work, ceiling.best)


def _program(team: Team, shape: ExpertShape, format: Format, layers: int, rows: int) -> Program:
    b = make_builder(team, hidden=shape.hidden, step_tokens=rows, context=rows)
    _, x = begin(b, team)
    for _ in range(layers):
        experts(b, x, shape.routing, _weights(team, shape, format))
    program = built(b, team)
    start_slot(program, 0, range(-(-rows // PAGE_SIZE)))
    return program


def _weights(team: Team, shape: ExpertShape, format: Format) -> MoeWeights:
    routing, hidden = shape.routing, shape.hidden
    experts, shared = range(routing.num_experts), routing.shared_intermediate_size
    return MoeWeights(
        router=random_matrix(team, routing.num_experts + routing.shared_gate, hidden),
        correction_bias=None,
        experts=experts,
        gate_up=same_matrices(random_matrix(team, 2 * routing.intermediate_size, hidden, format), len(experts)),
        down=same_matrices(random_matrix(team, hidden, routing.intermediate_size, format), len(experts)),
        shared=DenseMlp(random_matrix(team, 2 * shared, hidden, format), random_matrix(team, hidden, shared, format))
        if shared
        else None,
    )
