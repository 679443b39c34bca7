"""The blocking of products: every choice measured alternately, and the best choice compared with the table's.

Only the time differs between choices, never a bit of the result.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from numaserve.kernels import Program, Team, isa
from numaserve.workers.bench.meter import Meter, has_tile_registers
from numaserve.workers.bench.programs import (
    Format,
    begin,
    built,
    make_builder,
    random_matrix,
    spent_in_step,
    start_slot,
)
from numaserve.workers.bench.rows import Effort, Figure, Row, Rows, Times, Work, of_ceiling
from numaserve.workers.interface.protocol import PAGE_SIZE, Ceilings
from numaserve.workers.program.given import GivenMatrix

Blocking = Mapping[str, int]  # as in `Program.blocking`


@dataclass(frozen=True)
class Mlp:
    """The two products of a layer, or of an expert: gate and up, and down."""

    name: str
    hidden: int
    intermediate: int


# The last one has the width of a thread's share on a host with many threads.
MLPS = (Mlp("llama-1b", 2048, 8192), Mlp("deepseek-v3 expert", 7168, 2048), Mlp("narrow", 2048, 128))
NODES = {"gate_up": "gate_up", "linear_partial": "down"}
_NARROW = 32  # columns of a product that takes next to no time
Values = Mapping[str, Sequence[int]]  # of options of a blocking, by their names
SIZES: Values = {
    "group_panels": (16, 32, 64, 128),
    "slab_tiles": (16, 32, 64, 128, 256),
    "block_tiles": (4, 6, 8, 12, 16, 24, 32),
}
SIZES_OF_FEW: Values = {"few_tiles": (2, 4, 6, 8, 16), "few_rows": (0, 16, 36, 64)}
SIZES_OF_TILE_REGISTERS: Values = {
    "copied_tiles": (4, 8, 11, 13, 16, 24),
    "streamed_bytes": (0, 1 << 40),
    "least_copied_pairs": (0, 1 << 40),
    "row_block": (128, 256, 512),
}
_MOST_FEW_ROWS = 64
_WORTH = 0.98  # of the chosen time: a value that gains less may be fastest by luck


def values_for(m: int) -> Values:
    """Return the choices for M rows. A single row passes by whole panels and has none."""
    if m == 1:
        return {}
    if m <= _MOST_FEW_ROWS:
        return {**SIZES, **SIZES_OF_FEW}
    return {**SIZES, **SIZES_OF_TILE_REGISTERS} if has_tile_registers(isa()) else SIZES


@dataclass(frozen=True)
class Choice:
    """A blocking, its change, its times, and its best time divided by that of the blocking chosen without a sweep."""

    option: str  # empty for the chosen blocking and for the best one
    change: str
    blocking: Blocking
    times: Times
    of_chosen: float


@dataclass
class Findings:
    """The fastest value of each option, over all products and numbers of rows that a sweep measures."""

    chosen: Blocking = field(default_factory=dict)  # without a sweep
    _times: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    def add(self, choices: Sequence[Choice]) -> None:
        """Add the choices of a product and a number of rows."""
        self.chosen = choices[0].blocking
        for choice in choices:
            if choice.option:
                of_option = self._times.setdefault(choice.option, {})
                of_option.setdefault(choice.blocking[choice.option], []).append(choice.of_chosen)

    def best(self) -> dict[str, int]:
        """Return the chosen blocking with the fastest values, by the geometric mean of their times, in place of those
        that they beat by 2 % or more. A value that some products have no use for is measured by the others."""
        best = dict(self.chosen)
        for option, values in self._times.items():
            means = {value: math.exp(sum(map(math.log, times)) / len(times)) for value, times in values.items()}
            fastest = min(means, key=means.__getitem__)
            if means[fastest] <= _WORTH:
                best[option] = fastest
        return best

    def summary(self) -> str:
        """Return the changes of the chosen blocking, for people."""
        changes = [
            f"{name} {size} instead of {self.chosen[name]}"
            for name, size in self.best().items()
            if size != self.chosen[name]
        ]
        return ", ".join(changes) or f"the chosen sizes, because no other gains {1 - _WORTH:.0%}"


def bench_sweep(
    meter: Meter,
    effort: Effort,
    *,
    mlp: Mlp,
    format: Format,
    m_values: Sequence[int],
    values: Callable[[int], Values] = values_for,
    findings: Findings | None = None,
) -> Rows:
    """Measure rows for M of `m_values`: the blocking chosen without a sweep, each option's other values, and the best
    of all options together. `effort` is for each choice."""
    program, matrices = _program(meter.team, mlp, format, max(m_values))
    for m in m_values:
        if not values(m):
            continue
        with meter.around(format.name) as ceiling:
            of_products = _choices(program, m, effort, values(m))
        for (name, matrix), choices in zip(matrices.items(), of_products, strict=True):
            work = Work(matrix.nbytes, 2.0 * m * matrix.n * matrix.k, format.name)
            if findings is not None:
                findings.add(choices)
            for choice in choices:
                what: dict[str, str | int] = {"product": f"{mlp.name} {name}", "N": matrix.n, "K": matrix.k, "M": m}
                what |= {"change": choice.change}
                what |= {option: value for option, value in choice.blocking.items() if option in values(m)}
                yield Row(f"sweep, {format}", what, _figures(choice, work, ceiling.best.ceilings))


def _figures(choice: Choice, work: Work, ceilings: Ceilings) -> dict[str, Figure]:
    times = choice.times
    figures: dict[str, Figure] = {"best_us": times.best * 1e6, "median_us": times.median * 1e6}
    return figures | of_ceiling(times, work, ceilings) | {"of_chosen_time": choice.of_chosen}


def _program(team: Team, mlp: Mlp, format: Format, rows: int) -> tuple[Program, dict[str, GivenMatrix]]:
    """Return a program of both products, and their weights.

    Gate and up copy their activations and write bf16 results, which may go past the caches; down reads these results in
    the order of tiles and adds to the residual stream, as in a model. A second product reads the norm too: the result
    of a norm with one reader would be in the order of tiles, and nothing would be copied.
    """
    first = random_matrix(team, 2 * mlp.intermediate, mlp.hidden, format)
    down = random_matrix(team, mlp.hidden, mlp.intermediate, format)
    b = make_builder(team, hidden=mlp.hidden, step_tokens=rows, context=rows)
    residual, x = begin(b, team)
    b.linear(x, random_matrix(team, _NARROW, mlp.hidden, format))
    b.add_all_reduce(residual, b.gated_mlp(x, first, down, "silu"))
    program = built(b, team)
    start_slot(program, 0, range(-(-rows // PAGE_SIZE)))
    return program, dict(zip(NODES.values(), (first, down), strict=True))


def _choices(program: Program, m: int, effort: Effort, values: Values) -> list[list[Choice]]:
    """Return the choices of each product."""
    chosen = program.blocking
    changes = {("", ""): chosen} | {
        (option, f"{option} {value}"): chosen | {option: value}
        for option, several in values.items()
        for value in several
        if value != chosen[option]
    }
    measured = list(_by_turns(program, m, list(changes.values()), effort))
    found = []
    for product in range(len(NODES)):
        times = {change: each[product] for change, each in zip(changes, measured, strict=True)}
        best = chosen | {
            option: changes[min(of_option, key=lambda change: times[change].best)][option]
            for option in values
            if (of_option := [change for change in changes if change[0] in ("", option)])
        }
        # The best of many choices is partly best by luck: it is measured once more, against the chosen one only.
        again, together = (each[product] for each in _by_turns(program, m, [chosen, best], effort))
        first = times["", ""].best
        choices = [Choice(*each, changes[each], times[each], times[each].best / first) for each in changes]
        found.append([*choices, Choice("", "best of all", best, together, together.best / again.best)])
    return found


def _by_turns(program: Program, m: int, blockings: Sequence[Blocking], effort: Effort) -> Iterator[list[Times]]:
    """Measure the blockings alternately, and return the times of each by product; the program's own blocking is
    restored."""
    before = program.blocking
    samples: list[list[list[float]]] = [[[] for _ in NODES] for _ in blockings]
    for _ in effort.rounds(len(blockings)):
        for blocking, of_products in zip(blockings, samples, strict=True):
            program.blocking = blocking
            for seconds, spent in zip(of_products, spent_in_step(program, list(NODES), [(0, 0, m, 0)]), strict=True):
                seconds.append(spent.seconds)
    program.blocking = before
    return (list(map(Times.of, of_products)) for of_products in samples)
