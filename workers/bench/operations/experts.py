"""A layer's mixture of experts: routing, the products with the experts of each token, their weighted sum.

The tokens determine which experts are read; only the bytes of those experts count. Weights and tokens are random, so
that the experts are chosen about evenly.
"""

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
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.planning.roofline.expert_shapes import EXPERT_SHAPES, ExpertShape
from numaserve.workers.program.buffers import Operand
from numaserve.workers.program.ops.base import Matrix
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.recording.experts import ExpertMatrices, Router

_PRODUCTS = ("moe_gate_up", "moe_down")
_NODES = ("moe_route", *_PRODUCTS, "moe_combine")


def bench_experts(team: Team, effort: Effort, *, model: str, format: Format, m_values: Sequence[int]) -> Rows:
    """Measure the operations of one layer's experts for M tokens."""
    shape = EXPERT_SHAPES[model]
    weights = 3 * shape.hidden * shape.intermediate  # of an expert: a byte each or less, two bytes in bf16
    layers = copies_beyond_caches(weights * shape.routing.top_k, room=2 * weights * shape.routing.num_experts)
    program = _program(team, shape, format, layers, max(m_values))
    for m in m_values:
        run = [(0, 0, m, 0)]
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
        _append(b, team, shape, format, x)
    program = built(b, team)
    start_slot(program, 0, range(-(-rows // PAGE_SIZE)))
    return program


def _append(b: ProgramBuilder, team: Team, shape: ExpertShape, format: Format, x: Operand) -> None:
    """Append one mixture of experts with random weights."""
    hidden, experts = shape.hidden, range(shape.routing.num_experts)

    def matrices(n: int, k: int, shared: Matrix | None) -> ExpertMatrices:
        return ExpertMatrices(tuple(same_matrices(random_matrix(team, n, k, format), len(experts))), shared)

    gate_up, down = None, None
    if shape.shared:
        gate_up = random_matrix(team, 2 * shape.shared, hidden, format)
        down = random_matrix(team, hidden, shape.shared, format)
    b.experts(
        x,
        shape.routing,
        Router(random_matrix(team, len(experts) + shape.routing.shared_gate, hidden)),
        held=experts,
        gate_up=matrices(2 * shape.intermediate, hidden, gate_up),
        down=matrices(hidden, shape.intermediate, down),
    )
