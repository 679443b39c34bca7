"""The blocking of products: every choice measured alternately, and the best choice compared with the table's.

Only the time differs between choices, never a bit of the result.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from numaserve.kernels import Program, Team, isa
from numaserve.workers.bench.meter import Meter
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


class Blocking(NamedTuple):
    """The values of `Program.blocking`."""

    group_panels: int
    slab_tiles: int
    block_tiles: int
    few_tiles: int
    few_rows: int
    copied_tiles: int
    streamed_bytes: int
    row_block: int
    least_copied_pairs: int


@dataclass(frozen=True)
class Product:
    """A weight [n, k] of a model."""

    name: str
    n: int
    k: int


PRODUCTS = (
    Product("llama-1b gate_up", 16384, 2048),
    Product("llama-1b down", 2048, 8192),
    Product("deepseek-v3 expert", 4096, 7168),
)
Values = Mapping[str, Sequence[int]]  # of options of a blocking, by their names
SIZES: Values = {
    "group_panels": (16, 32, 64, 128),
    "slab_tiles": (16, 32, 64, 128, 256),
    "block_tiles": (4, 6, 8, 12, 16, 24, 32),
}
SIZES_OF_FEW: Values = {"few_tiles": (2, 4, 6, 8, 16), "few_rows": (0, 16, 36, 64)}
SIZES_OF_TILE_REGISTERS: Values = {"copied_tiles": (4, 8, 11, 13, 16, 24), "streamed_bytes": (0, 1 << 40)}
_MOST_FEW_ROWS = 64


def values_for(m: int) -> Values:
    """Return the choices for M rows. A single row passes by whole panels and has none."""
    if m == 1:
        return {}
    if m <= _MOST_FEW_ROWS:
        return {**SIZES, **SIZES_OF_FEW}
    return {**SIZES, **SIZES_OF_TILE_REGISTERS} if isa().startswith("amx") else SIZES


@dataclass(frozen=True)
class Choice:
    """A blocking, its change, its times, and its best time divided by that of the blocking chosen without a sweep."""

    change: str
    blocking: Blocking
    times: Times
    of_chosen: float


def bench_sweep(
    meter: Meter,
    effort: Effort,
    *,
    product: Product,
    format: Format,
    m_values: Sequence[int],
    values: Callable[[int], Values] = values_for,
) -> Rows:
    """Measure rows for M of `m_values`: the blocking chosen without a sweep, each option's other values, and the best
    of all options together. `effort` is for each choice."""
    program, nbytes = _program(meter.team, product, format, max(m_values))
    for m in m_values:
        if not values(m):
            continue
        work = Work(nbytes, 2.0 * m * product.n * product.k, format.name)
        with meter.around(format.name) as ceiling:
            choices = _choices(program, m, effort, values(m))
        for choice in choices:
            what: dict[str, str | int] = {"product": product.name, "N": product.n, "K": product.k, "M": m}
            what |= {"change": choice.change}
            what |= {option: value for option, value in choice.blocking._asdict().items() if option in values(m)}
            yield Row(f"sweep, {format}", what, _figures(choice, work, ceiling.best.ceilings))


def _figures(choice: Choice, work: Work, ceilings: Ceilings) -> dict[str, Figure]:
    times = choice.times
    figures: dict[str, Figure] = {"best_us": times.best * 1e6, "median_us": times.median * 1e6}
    return figures | of_ceiling(times, work, ceilings) | {"of_chosen_time": choice.of_chosen}


def _program(team: Team, product: Product, format: Format, rows: int) -> tuple[Program, int]:
    """Return a program of one product, and the bytes of its weight."""
    matrix = random_matrix(team, product.n, product.k, format)
    b = make_builder(team, hidden=product.k, step_tokens=rows, context=rows)
    _, x = begin(b, team)
    b.linear(x, matrix)
    program = built(b, team)
    start_slot(program, 0, range(-(-rows // PAGE_SIZE)))
    return program, matrix.nbytes


def _choices(program: Program, m: int, effort: Effort, values: Values) -> list[Choice]:
    chosen = Blocking(*program.blocking)
    changes = {"": chosen} | {
        f"{option} {value}": Blocking(**chosen._asdict() | {option: value})
        for option, several in values.items()
        for value in several
        if value != getattr(chosen, option)
    }
    times = dict(zip(changes, _by_turns(program, m, list(changes.values()), effort), strict=True))
    best = chosen
    for option, several in values.items():
        of_option = ["", *(f"{option} {value}" for value in several if f"{option} {value}" in changes)]
        fastest = min(of_option, key=lambda change: times[change].best)
        best = Blocking(**best._asdict() | {option: getattr(changes[fastest], option)})
    found = [Choice(each, changes[each], times[each], times[each].best / times[""].best) for each in changes]
    # The best of many choices is partly best by luck: it is measured once more, against the chosen one only.
    again, together = _by_turns(program, m, [chosen, best], effort)
    return [*found, Choice("best of all", best, together, together.best / again.best)]


def _by_turns(program: Program, m: int, blockings: Sequence[Blocking], effort: Effort) -> Iterator[Times]:
    """Measure the blockings alternately, and return the times of each; the program's own blocking is restored."""
    before = program.blocking
    samples: list[list[float]] = [[] for _ in blockings]
    for _ in effort.rounds(len(blockings)):
        for blocking, seconds in zip(blockings, samples, strict=True):
            program.blocking = blocking
            (spent,) = spent_in_step(program, ["linear"], [(0, 0, m, 0)])
            seconds.append(spent.seconds)
    program.blocking = before
    return map(Times.of, samples)
