"""A layer's mixture of experts: routing, the products with the experts of each token, their weighted sum.

The tokens determine which experts are read; only the bytes of those experts count. Weights and tokens are random, so
that the experts are chosen about evenly.
"""

from collections.abc import Sequence
from functools import partial

from numaserve.kernels import Program, Team
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.programs import (
    Format,
    begin,
    built,
    make_builder,
    place,
    random_matrix,
    same_matrices,
    spent_in_step,
    start_slot,
)
from numaserve.workers.bench.rows import Effort, Rows, Work, timed_row
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.planning.ceilings import Range
from numaserve.workers.planning.roofline.expert_shapes import EXPERT_SHAPES, ExpertShape
from numaserve.workers.program.given import GivenMatrix
from numaserve.workers.program.recording.experts import ExpertMatrices, Router

_PRODUCTS = ("moe_gate_up", "moe_down")
_NODES = ("moe_route", *_PRODUCTS, "moe_combine")


def bench_experts(meter: Meter, effort: Effort, *, model: str, format: Format, m_values: Sequence[int]) -> Rows:
    """Measure the operations of one layer's experts for M tokens; weights are read from memory."""
    shape = EXPERT_SHAPES[model]
    program, weights = _program(meter.team, shape, format, max(m_values))
    for m in m_values:
        run = [(0, 0, m, 0)]
        done = spent_in_step(program, _NODES, run)
        with meter.around(format.name) as ceiling:
            found = effort.repeat(partial(meter.seconds, program, _NODES, run, weights))
        for node, spent, times in zip(_NODES, done, found, strict=True):
            work = Work(spent.nbytes, spent.flops, format.name)
            if node not in _PRODUCTS:
                # Rows that are copied, or summed.
                work = Work(4.0 * m * shape.routing.top_k * shape.hidden, format=format.name)
            what: dict[str, str | int] = {"model": model, "format": str(format), "operation": node, "M": m}
            yield timed_row(f"experts, {format}", what, times, work, ceiling.best)


def _program(team: Team, shape: ExpertShape, format: Format, rows: int) -> tuple[Program, list[Range]]:
    """Return a program of one mixture of experts with random weights, and the memory of these."""
    hidden, experts = shape.hidden, range(shape.routing.num_experts)
    b = make_builder(team, hidden=hidden, step_tokens=rows, context=rows)
    _, x = begin(b, team)

    weights: list[Range] = []

    def matrices(n: int, k: int, count: int = 1) -> tuple[GivenMatrix, ...]:
        first = random_matrix(team, n, k, format)
        made = (first, *same_matrices(first, count - 1))
        weights.extend(map(place, made))
        return made

    gate_up, down = None, None
    if shape.shared:
        (gate_up,), (down,) = matrices(2 * shape.shared, hidden), matrices(hidden, shape.shared)
    b.experts(
        x,
        shape.routing,
        # With the numbers of the embedding, tokens would choose the expert whose row equals theirs. The scores of the
        # others would be zero, and the first of them would get all tokens.
        Router(random_matrix(team, len(experts) + shape.routing.shared_gate, hidden, seed=1)),
        held=experts,
        gate_up=ExpertMatrices(matrices(2 * shape.intermediate, hidden, len(experts)), gate_up),
        down=ExpertMatrices(matrices(hidden, shape.intermediate, len(experts)), down),
    )
    program = built(b, team)
    start_slot(program, 0, range(-(-rows // PAGE_SIZE)))
    return program, weights
