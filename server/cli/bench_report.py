"""The tables and JSON lines of ``numaserve bench kernels``, ``ring``, ``offline`` and ``load``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

import typer
from numaserve.server.cli.tables import stdout_console, titled_table
from numaserve.server.loadtest.report.report import JsonLines, number
from numaserve.workers.bench.group import RankFailed
from numaserve.workers.bench.rows import Figure, Row
from rich.console import Console
from rich.status import Status
from rich.table import Table

EXIT_FAILED = 1
_FRACTIONS = ("of_", "share_")


class MachineReport:
    """The report of a benchmark: tables on standard output, JSON lines, and progress on a standard error terminal."""

    def __init__(self, benchmark: str, file: Path | None) -> None:
        """Open the report. Raises `OperatorError` if `file` cannot be written."""
        self.console = stdout_console()
        self._lines = JsonLines(file, "--json")
        self._benchmark = benchmark
        errors = Console(stderr=True)
        # Two frames per second, so that the display does not disturb the measurement.
        self._status = Status("", console=errors, refresh_per_second=2) if errors.is_terminal else None

    def __enter__(self) -> MachineReport:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if isinstance(error, RankFailed):
            sys.stderr.write(f"numaserve: {error}\n")
            raise typer.Exit(EXIT_FAILED) from None

    def say(self, text: str) -> None:
        """Show the name of the current measurement."""
        if self._status is not None:
            self._status.update(text)

    def add(self, rows: Iterable[Row]) -> None:
        """Show and write rows; consecutive rows with the same `table` share a table."""
        for title, group in groupby(rows, key=lambda row: row.table):
            shown = []
            for row in group:
                self.write({"table": row.table} | row.what | row.figures)
                shown.append(row)
            self.console.print(_table(title, shown))

    def write(self, record: dict[str, Any]) -> None:
        """Append a JSON line, with the machine's name and load."""
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "benchmark": self._benchmark,
            "processor": _processor(),
            "load_average": os.getloadavg()[0],
        }
        self._lines.write(about | record)


def _table(title: str, rows: list[Row]) -> Table:
    cells: list[dict[str, Figure]] = [{**row.what, **row.figures} for row in rows]
    columns = list(dict.fromkeys(name for row in cells for name in row))
    table = titled_table(title)
    for name in columns:
        values = [row.get(name) for row in cells]
        table.add_column(
            name.replace("_", " "), justify="left" if any(isinstance(value, str) for value in values) else "right"
        )
    for row in cells:
        table.add_row(*(_shown(name, row.get(name)) for name in columns))
    return table


def _shown(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1%}" if name.startswith(_FRACTIONS) else number(value)
    return str(value)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
