"""``numaserve ring-stat PID``."""

from typing import Annotated

import typer
from numaserve.server.cli.tables import stdout_console
from numaserve.shm_comm import RingError
from numaserve.shm_comm.stat import render
from numaserve.workers.interface.errors import OperatorError


def ring_stat(
    pid: Annotated[int, typer.Argument(metavar="PID", help="Process id of the server or of one of its workers.")],
) -> None:
    """Show the state of the shared-memory ring between running workers: epochs, waits and the reason of an abort."""
    try:
        stdout_console().print(render(pid))
    except RingError as error:
        raise OperatorError(str(error)) from error
