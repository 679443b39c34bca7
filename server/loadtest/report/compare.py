"""The ratios between servers that received the same work alternately."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numaserve.server.loadtest.report.report import number
from numaserve.server.loadtest.report.stats import Summary
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text


def _latency(name: str, field: str) -> Callable[[Summary], float | None]:
    def figure(summary: Summary) -> float | None:
        latency = summary.latencies[name]
        return None if latency is None else float(getattr(latency, field))

    return figure


FIGURES: dict[str, Callable[[Summary], float | None]] = {
    "TTFT median (ms)": _latency("ttft", "median"),
    "TTFT p99 (ms)": _latency("ttft", "p99"),
    "TPOT median (ms)": _latency("tpot", "median"),
    "TPOT p99 (ms)": _latency("tpot", "p99"),
    "ITL p99 (ms)": _latency("itl", "p99"),
    "E2E median (ms)": _latency("e2el", "median"),
    "input tokens/s": lambda summary: summary.input_throughput,
    "output tokens/s": lambda summary: summary.output_throughput,
    "requests/s": lambda summary: summary.request_throughput,
}


@dataclass(frozen=True)
class Ratio:
    """The ratio of a server's figure to the first server's, in each round; `medians` are of first and other."""

    figure: str
    medians: tuple[float, float]
    median: float
    lowest: float
    highest: float


def ratios(first: Sequence[Summary], other: Sequence[Summary]) -> list[Ratio]:
    """Return the ratios of all figures that both servers have in every round.

    Only runs of the same round are compared: changes of the machine between rounds then affect both servers.
    """
    found = []
    for name, figure in FIGURES.items():
        pairs = [(figure(a), figure(b)) for a, b in zip(first, other, strict=True)]
        values = np.array([pair for pair in pairs if None not in pair and pair[0]], dtype=float)
        if len(values) != len(pairs):
            continue
        each = values[:, 1] / values[:, 0]
        a, b = np.median(values, axis=0)
        found.append(Ratio(name, (float(a), float(b)), float(np.median(each)), float(each.min()), float(each.max())))
    return found


def ratio_view(first_name: str, other_name: str, found: Sequence[Ratio]) -> Group:
    """Return a table of medians and ratios, with the lowest and the highest ratio of the rounds."""
    names = ("A, median", "B, median", "B / A", "lowest", "highest")
    columns = [Column(name, justify="right") for name in names]
    table = Table("", *columns)
    for ratio in found:
        cells = (*map(number, ratio.medians), *(f"{each:.3f}" for each in (ratio.median, ratio.lowest, ratio.highest)))
        table.add_row(ratio.figure, *cells)
    return Group(Text(f"\nA: {first_name}\nB: {other_name}", style="bold"), table)
