"""What the benchmarks share: the ceilings of this machine, repetition, and the report.

A figure says little on a machine that is not described, and less on one that is shared: so each time is set beside the
best time that this machine allows, from its read bandwidth and its peak of bf16 operations with the instruction set in
use, measured in the same run. A shared machine's bandwidth can halve for minutes: rows that a few seconds decide have
ceilings of their own, measured just before and after. The best repetition is compared with the ceiling, the median
tells how much the machine was disturbed.

python bench_common.py     prints the ceilings as JSON
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numaserve.kernels import Team
from numaserve.workers.profiling import rank_ceilings
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parents[2] / "bench-results"


@dataclass(frozen=True)
class Ceilings:
    """What the machine can do at best, on all processors this process may use."""

    isa: str
    threads: int
    read_bytes_s: float
    flops_s: float  # with the weights' format

    def better(self, other: Ceilings) -> Ceilings:
        """The best of two measurements of the same machine."""
        return Ceilings(
            self.isa,
            self.threads,
            max(self.read_bytes_s, other.read_bytes_s),
            max(self.flops_s, other.flops_s),
        )

    def plus(self, other: Ceilings) -> Ceilings:
        """Those of two teams that work at the same time."""
        return Ceilings(
            self.isa,
            self.threads + other.threads,
            self.read_bytes_s + other.read_bytes_s,
            self.flops_s + other.flops_s,
        )

    def bound(self, nbytes: float, flops: float) -> tuple[float, str]:
        """Seconds that reading `nbytes` and doing `flops` operations take at least, and which of the two it is."""
        memory, compute = nbytes / self.read_bytes_s, flops / self.flops_s
        return max((memory, "read"), (compute, "flops"))


def measure_ceilings() -> Ceilings:
    """Measure in a process of its own: a thread team pins its caller for good."""
    answer = subprocess.run([sys.executable, __file__], check=True, stdout=subprocess.PIPE)
    return Ceilings(**json.loads(answer.stdout))


def team_ceilings(team: Team, weights: str = "bf16") -> Ceilings:
    """Measure with a team that there is, in about a third of a second, for weights of that format."""
    measured = rank_ceilings(team, [weights])
    return Ceilings(measured.isa, measured.threads, measured.read_bytes_s, measured.flops_s[weights])


def all_cpus() -> list[int]:
    """The processors that this process may use."""
    return sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Times:
    """Seconds that repetitions of the same work took."""

    best: float
    median: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """The summary of some repetitions."""
        return cls(min(seconds), statistics.median(seconds))

    def per(self, count: float) -> Times:
        """The same for one of `count` equal parts."""
        return Times(self.best / count, self.median / count)


def repeat(work: Callable[[], float], *, seconds: float = 1.0, least: int = 3, most: int = 200) -> Times:
    """Repeat `work`, which returns the seconds that count, for about so long."""
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < least or (time.perf_counter() < end and len(samples) < most):
        samples.append(work())
    return Times.of(samples)


@dataclass
class _Row:
    table: str
    figures: dict[str, Any]
    times: Times | None
    nbytes: float
    flops: float
    ceilings: Ceilings | None


class Report:
    """Gathers rows; `finish` measures the ceilings again, prints the tables and writes the JSON lines.

    Units are in the names of the figures: `_ms`, `_us`, `_s`, `_gb_s`; `of_` and `share_` are fractions.
    """

    def __init__(self, benchmark: str) -> None:
        self._benchmark = benchmark
        self._rows: list[_Row] = []
        self._ceilings = measure_ceilings()
        self._console = Console(stderr=True)

    def add(
        self,
        table: str,
        *,
        times: Times | None = None,
        nbytes: float = 0.0,
        flops: float = 0.0,
        ceilings: Ceilings | None = None,
        **figures: Any,
    ) -> None:
        """Add a row. With `times`, of work that reads `nbytes` from memory and does `flops` operations, it gets the
        fraction that this is of `ceilings`, or of those of the whole run."""
        self._rows.append(_Row(table, figures, times, nbytes, flops, ceilings))
        self._console.print(f"[dim]{table}: {', '.join(f'{k}={_shown(k, v)}' for k, v in figures.items())}[/dim]")

    def refresh(self) -> None:
        """Measure the ceilings again and keep the best: what disturbs a long run should not lower its ceilings."""
        self._ceilings = self._ceilings.better(measure_ceilings())

    def finish(self) -> None:
        """Print and write everything."""
        self.refresh()
        machine = asdict(self._ceilings) | {
            "machine": _processor(),
            "load": os.getloadavg()[0],
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        lines = [machine | {"benchmark": self._benchmark, "table": "ceilings"}]
        tables: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows:
            figures = self._complete(row)
            tables.setdefault(row.table, []).append(figures)
            lines.append({"benchmark": self._benchmark, "table": row.table} | figures)
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self._benchmark}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._print(tables)
        sys.stdout.write(f"{path}\n")

    def _complete(self, row: _Row) -> dict[str, Any]:
        if row.times is None:
            return row.figures
        figures = row.figures | {"best_ms": row.times.best * 1e3, "median_ms": row.times.median * 1e3}
        if not row.nbytes and not row.flops:
            return figures
        bound, name = (row.ceilings or self._ceilings).bound(row.nbytes, row.flops)
        if row.nbytes:
            figures["gb_s"] = row.nbytes / row.times.best / 1e9
        if row.flops:
            figures["gflop_s"] = row.flops / row.times.best / 1e9
        return figures | {"ceiling": name, "of_ceiling": bound / row.times.best, "median_of": bound / row.times.median}

    def _print(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        console = Console(width=None if sys.stdout.isatty() else 160)
        c = self._ceilings
        console.print(
            f"{self._benchmark}: {_processor()}, {c.threads} threads, {c.isa}: reads {c.read_bytes_s / 1e9:.1f} GB/s,"
            f" bf16 {c.flops_s / 1e12:.3f} TFLOP/s, load average {os.getloadavg()[0]:.1f}"
        )
        for name, rows in tables.items():
            columns = list(dict.fromkeys(key for row in rows for key in row))
            table = Table(title=name, title_justify="left")
            for column in columns:
                table.add_column(column, justify="left" if isinstance(rows[0].get(column), str) else "right")
            for row in rows:
                table.add_row(*(_shown(column, row.get(column)) for column in columns))
            console.print(table)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1%}" if name.startswith(("of_", "share_", "median_of")) else f"{value:.4g}"
    return str(value)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _main() -> None:
    sys.stdout.write(json.dumps(asdict(team_ceilings(Team(all_cpus())))))


if __name__ == "__main__":
    _main()
