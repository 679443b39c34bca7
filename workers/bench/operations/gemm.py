"""Packed matrix products, as a model's layers do them: x[M, K] · w[N, K]ᵀ, gate and up, or up alone, fused with the
activation. Products of o and down add to the residual stream.

Quantizing x is an operation of its own and not counted.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from numaserve.kernels import Program, Team
from numaserve.workers.bench.encoder_shapes import ENCODERS, EncoderShape
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.programs import (
    Format,
    begin,
    built,
    copies_in_step,
    make_builder,
    place,
    random_matrix,
    same_matrices,
    start_slot,
    step,
)
from numaserve.workers.bench.rows import Effort, Rows, Work, timed_row
from numaserve.workers.bench.shapes import SHAPES, Shape
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.program.given import GivenMatrix

Sizes = Mapping[str, Sequence[tuple[int, int]]]  # N and K of the products of each part
Products = list[tuple[GivenMatrix, ...]]  # of the nodes in `NODES`, one for each repetition in a program

NODES = {
    "qkv": {"linear": "qkv"},
    "o": {"linear_partial": "o"},
    "mlp": {"gate_up": "gate_up", "linear_partial": "down"},
}
_ENCODER_NODES = NODES | {"mlp": {"up": "up", "linear_partial": "down"}}


def bench_gemm(meter: Meter, effort: Effort, *, model: str, part: str, format: Format, m_values: Sequence[int]) -> Rows:
    """Measure the products of `part` (qkv, o or mlp) of a layer of `model`, of `SHAPES` or `ENCODERS`, whose weights
    are read from memory."""
    table, nodes = ("encoders", _ENCODER_NODES) if model in ENCODERS else ("gemm", NODES)
    sizes = _encoder_sizes(ENCODERS[model]) if model in ENCODERS else sizes_of(SHAPES[model])
    first = [random_matrix(meter.team, n, k, format) for n, k in sizes[part]]
    copies = copies_in_step(sum(matrix.nbytes for matrix in first))
    products: Products = list(zip(*((matrix, *same_matrices(matrix, copies - 1)) for matrix in first), strict=True))
    weights = [place(matrix) for matrices in products for matrix in matrices]
    program = product_program(meter.team, products, max(m_values), part=part, gated="gate_up" in nodes[part])
    step(program, [(0, 0, min(m_values), 0)])
    for m in m_values:
        with meter.around(format.name) as ceiling:
            found = effort.repeat(partial(meter.seconds, program, list(nodes[part]), [(0, 0, m, 0)], weights))
        for name, matrix, times in zip(nodes[part].values(), first, found, strict=True):
            work = Work(matrix.nbytes, 2.0 * m * matrix.n * matrix.k, format.name)
            what: dict[str, str | int] = {"model": model, "format": str(format), "product": name}
            what |= {"K": matrix.k, "N": matrix.n, "M": m}
            yield timed_row(f"{table}, {format}", what, times.per(copies), work, ceiling.best)


def sizes_of(shape: Shape) -> Sizes:
    """Return N and K of the products of each part of a layer."""
    width = shape.heads * shape.head_dim
    return {
        "qkv": [(width + 2 * shape.kv_heads * shape.head_dim, shape.hidden)],
        "o": [(shape.hidden, width)],
        "mlp": [(2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)],
    }


def _encoder_sizes(shape: EncoderShape) -> Sizes:
    return {
        "qkv": [(3 * shape.hidden, shape.hidden)],
        "o": [(shape.hidden, shape.hidden)],
        "mlp": [(shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)],
    }


def product_program(team: Team, products: Products, rows: int, *, part: str, gated: bool) -> Program:
    """Return a program of the products of a part, for a step of up to `rows` rows."""
    b = make_builder(team, hidden=products[0][0].k, step_tokens=rows, context=rows)
    residual, x = begin(b, team)
    for matrices in products:
        match part, matrices:
            case "qkv", (weight,):
                b.linear(x, weight)
            case "o", (weight,):
                b.add_all_reduce(residual, b.linear_partial(x, weight))
            case _, (first, down) if gated:
                b.add_all_reduce(residual, b.gated_mlp(x, first, down, "silu"))
            case _, (first, down):
                b.add_all_reduce(residual, b.plain_mlp(x, first, down, "gelu"))
    program = built(b, team)
    start_slot(program, 0, range(-(-rows // PAGE_SIZE)))
    return program
