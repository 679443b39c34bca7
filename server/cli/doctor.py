"""``numaserve doctor``: checks of a new host before it serves."""

import sys
from typing import Annotated

import msgspec
import typer
from numaserve.server.cli.doctor_view import findings_view, summary
from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.doctor.checks import check_host
from numaserve.workers.planning.doctor.host import read_host
from rich.console import Console

EXIT_PROBLEM = 1
_WIDTH = 180  # columns without a terminal


def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False) -> None:
    """Check the settings of this host, and state what to change. Nothing on the host is changed.

    The exit status is 1 if there is a problem.
    """
    host = read_host(kernels=_kernels())
    findings = check_host(host)
    if as_json:
        typer.echo(msgspec.json.encode({"processor": host.processor.name, "checks": findings}).decode())
    else:
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        console.print(findings_view("Settings", findings))
        console.print(summary(findings), markup=False, highlight=False)
    if any(each.status == "problem" for each in findings):
        raise typer.Exit(EXIT_PROBLEM)


def _kernels() -> str | None:
    try:
        return instruction_set()
    except OperatorError:
        return None
