"""Packed matrix products, as a model's layers do them: x[M, K] · w[N, K]ᵀ, gate and up, or up alone, fused with the
activation.

Quantizing x is an operation of its own and not counted.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from numaserve.kernels import Program, Team
from numaserve.workers.bench.encoder_shapes import ENCODERS, EncoderShape
from numaserve.workers.bench.programs import (
    Format,
    begin,
    built,
    copies_beyond_caches,
    make_builder,
    random_matrix,
    start_slot,
    step,
    timed_step,
)
from numaserve.workers.bench.rows import Ceiling, Effort, Rows, Work, timed_row
from numaserve.workers.bench.shapes import SHAPES, Shape
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.planning.ceilings import rank_ceilings
from numaserve.workers.program.given import GivenMatrix

# Up to this number of rows, reading the weights takes most of the time, so each product must find its own weights in
# memory. Beyond, one product is as good as many, and done sooner.
_FEW_ROWS = 64

_Sizes = Mapping[str, Sequence[tuple[int, int]]]  # N and K of the products of each part
Products = list[tuple[GivenMatrix, ...]]  # of the nodes in `_NODES`, one for each repetition in a program

_NODES = {
    "qkv": {"linear": "qkv"},
    "o": {"linear": "o"},
    "mlp": {"gate_up": "gate_up", "linear_partial": "down"},
}
_ENCODER_NODES = _NODES | {"mlp": {"up": "up", "linear_partial": "down"}}


def bench_gemm(team: Team, effort: Effort, *, model: str, part: str, format: Format, m_values: Sequence[int]) -> Rows:
    """Measure the products of `part` (qkv, o or mlp) of a layer of `model`, of `SHAPES` or `ENCODERS`."""
    table, nodes = ("encoders", _ENCODER_NODES) if model in ENCODERS else ("gemm", _NODES)
    sizes = _encoder_sizes(ENCODERS[model]) if model in ENCODERS else _sizes(SHAPES[model])
    products: Products = [_matrices(team, sizes[part], format)]
    few, many = [m for m in m_values if m <= _FEW_ROWS], [m for m in m_values if m > _FEW_ROWS]
    if few:
        copies = copies_beyond_caches(sum(matrix.nbytes for matrix in products[0]))
        products += [_matrices(team, sizes[part], format) for _ in range(1, copies)]
    for values, repeated in ((few, products), (many, products[:1])):
        if not values:
            continue
        program = _program(team, repeated, max(values), gated="gate_up" in nodes[part])
        for m in values:
            run = [(0, 0, m, 0)]
            step(program, run)
            for (node, name), matrix in zip(nodes[part].items(), products[0], strict=True):
                with Ceiling(partial(rank_ceilings, team, [format.name])) as ceiling:
                    times = effort.repeat(partial(timed_step, program, node, run)).per(len(repeated))
                work = Work(matrix.nbytes, 2.0 * m * matrix.n * matrix.k, format.name)
                what: dict[str, str | int] = {"model": model, "format": str(format), "product": name}
                what |= {"K": matrix.k, "N": matrix.n, "M": m}
                yield timed_row(f"{table}, {format}", what, times, work, ceiling.best)


def _sizes(shape: Shape) -> _Sizes:
    width = shape.heads * shape.head_dim
    return {
        "qkv": [(width + 2 * shape.kv_heads * shape.head_dim, shape.hidden)],
        "o": [(shape.hidden, width)],
        "mlp": [(2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)],
    }


def _encoder_sizes(shape: EncoderShape) -> _Sizes:
    return {
        "qkv": [(3 * shape.hidden, shape.hidden)],
        "o": [(shape.hidden, shape.hidden)],
        "mlp": [(shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)],
    }


def _matrices(team: Team, sizes: Sequence[tuple[int, int]], format: Format) -> tuple[GivenMatrix, ...]:
    return tuple(random_matrix(team, n, k, format) for n, k in sizes)


def _program(team: Team, products: Products, rows: int, *, gated: bool) -> Program:
    b = make_builder(team, hidden=products[0][0].k, step_tokens=rows, context=rows)
    _, x = begin(b, team)
    for matrices in products:
        if len(matrices) == 1:
            b.linear(x, matrices[0])
        elif gated:
            b.gated_mlp(x, matrices[0], matrices[1], "silu")
        else:
            b.plain_mlp(x, matrices[0], matrices[1], "gelu")
    program = built(b, team)
    start_slot(program, 0, range(-(-rows // PAGE_SIZE)))
    return program
