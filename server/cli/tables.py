"""Tables of figures, as commands print them."""

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

_UNBOUNDED = 10_000  # columns, more than any table needs


def stdout_console() -> Console:
    """Return the console of standard output.

    Without a terminal every table is as wide as its rows. Rich assumes 80 columns then, and cuts or wraps the cells.
    """
    return Console(width=None if sys.stdout.isatty() else _UNBOUNDED)


def figure_table(title: str, first: str, *columns: str) -> Table:
    """Return an empty table: a column of names, then columns of figures."""
    return titled_table(title, Column(first, no_wrap=True), *(Column(name, justify="right") for name in columns))


def titled_table(title: str, *columns: Column) -> Table:
    """Return an empty table with a title above it."""
    return Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def number(value: float) -> str:
    """Return a figure with four digits; empty for nothing."""
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" if value else ""


def milliseconds(seconds: float) -> str:
    """Return a time with its unit: seconds from ten on."""
    return f"{seconds * 1e3:.4g} ms" if seconds < 10 else f"{seconds:.4g} s"
