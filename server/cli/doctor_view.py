"""The tables of ``numaserve doctor``."""

from collections import Counter
from collections.abc import Sequence

from numaserve.server.cli.tables import titled_table
from numaserve.workers.planning.doctor.findings import Finding, Status
from rich.table import Column, Table
from rich.text import Text

_STYLES: dict[Status, str] = {"ok": "green", "advice": "yellow", "problem": "bold red", "unknown": "dim"}


def findings_view(title: str, findings: Sequence[Finding]) -> Table:
    """Return a table with a row for each finding."""
    columns = (Column("check"), Column("found"), Column("wanted"), Column("change"), Column("status", no_wrap=True))
    table = titled_table(title, *columns)
    for each in findings:
        # As texts, so that brackets are no markup.
        cells = (each.check, each.found, each.wanted, each.change)
        table.add_row(*map(Text, cells), Text(each.status, _STYLES[each.status]))
    return table


def summary(findings: Sequence[Finding]) -> str:
    """Return a line with the number of findings of each status."""
    counts = Counter(each.status for each in findings)
    return ", ".join(f"{counts[status]} {status}" for status in _STYLES)
