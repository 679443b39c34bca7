"""One thread's share of a layer's products, on a host with many more threads than this one.

A team of one thread does what the first of many would do, so one core is enough to measure the shapes that a share has
on a large host. The other threads' shares are left undone, and results are incomplete.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from numaserve.kernels import Program, Team, evict
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.operations.gemm import NODES, product_program, sizes_of
from numaserve.workers.bench.programs import Format, SlotTokens, place, random_matrix, spent_in_step, step
from numaserve.workers.bench.rows import Effort, Rows, Work, timed_row
from numaserve.workers.bench.shapes import SHAPES, Shape
from numaserve.workers.planning.ceilings import Range

# A model that one node serves, and the part of a rank of a larger one on a host with six nodes.
RANKS = {
    "llama-8b": SHAPES["llama-8b"],
    "llama-70b / 6": Shape(8192, 80, 11, 2, 128, 4800, 128256, tied=False),
}
_UNIT_ROWS, _UNIT_COLUMNS = 32, 32  # of the results that threads divide


def bench_share(
    meter: Meter, effort: Effort, *, model: str, part: str, format: Format, m_values: Sequence[int], threads: int
) -> Rows:
    """Measure the first of `threads` shares of the products of `part`; weights are read from memory. The meter's team
    has one thread."""
    matrices = [random_matrix(meter.team, n, k, format) for n, k in sizes_of(RANKS[model])[part]]
    # What a rank of several adds to the residual stream has another width than the activations: o is measured alone.
    alone = "qkv" if part == "o" else part
    program = product_program(meter.team, [tuple(matrices)], max(m_values), part=alone, gated=True)
    share = _Share(meter.team, program, [place(each) for each in matrices], threads)
    for m in m_values:
        run = [(0, 0, m, 0)]
        step(program, run)  # makes all of the activations
        with meter.around(format.name) as ceiling:
            found = effort.repeat(partial(share.seconds, list(NODES[alone]), run))
        for name, matrix, times in zip(NODES[part].values(), matrices, found, strict=True):
            units = -(-m // _UNIT_ROWS) * -(-matrix.n // _UNIT_COLUMNS) // threads
            flops = 2.0 * units * _UNIT_ROWS * _UNIT_COLUMNS * matrix.k
            what: dict[str, str | int] = {"model": model, "format": str(format), "product": name}
            what |= {"K": matrix.k, "N": matrix.n, "M": m, "threads": threads}
            yield timed_row(f"share of {threads}, {format}", what, times, Work(0.0, flops, format.name), ceiling.best)


@dataclass(frozen=True)
class _Share:
    """A program and its weights, of which one of `threads` does its share."""

    team: Team
    program: Program
    weights: Sequence[Range]
    threads: int

    def seconds(self, names: Sequence[str], run: Sequence[SlotTokens]) -> list[float]:
        evict(self.team, self.weights)
        with _acting(self.team, self.threads):
            return [spent.seconds for spent in spent_in_step(self.program, names, run)]


@contextmanager
def _acting(team: Team, threads: int) -> Iterator[None]:
    team.act_as_first_of(threads)
    try:
        yield
    finally:
        team.act_as_first_of(1)
