"""The view of an explanation of an estimate: what threads and ranks wait for."""

from numaserve.server.cli.tables import figure_table, milliseconds, number
from numaserve.workers.planning.simulation.explanation import Explanation
from numaserve.workers.planning.simulation.times import OperationTime, StepTime
from rich.console import Group
from rich.table import Table

_SHOWN = 0.002  # smallest fraction of a phase that has a row


def explanation_view(explanation: Explanation) -> Group:
    """Return a table for each phase."""
    phases = {"prefill": explanation.prefill, "decode": explanation.decode}
    return Group(*(_phase_table(name, phase) for name, phase in phases.items() if phase is not None))


def _phase_table(name: str, step: StepTime) -> Table:
    title = f"{name} by threads: {milliseconds(step.seconds)}; ranks wait {milliseconds(step.waiting_s)} in it"
    columns = ("ms", "threads", "ranks", "barriers", "meetings", "MB from other ranks")
    found = figure_table(title, "operation", *columns)
    for each in step.operations:
        if each.seconds >= _SHOWN * step.seconds:
            found.add_row(*_cells(each))
    return found


def _cells(each: OperationTime) -> tuple[str, ...]:
    return (
        each.name if each.weights == "bf16" else f"{each.name} {each.weights}",
        number(each.seconds * 1e3),
        f"{each.threads:.0%}",
        f"{each.ranks:.0%}",
        str(each.barriers),
        str(each.meetings or ""),
        number(each.remote / 1e6),
    )
