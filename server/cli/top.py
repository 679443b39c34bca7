"""``numaserve top URL``: the live view of a running server."""

import time
from typing import Annotated
from urllib.parse import quote

import typer
from numaserve.server.cli.shared_options import ApiKeyFile, CaFile
from numaserve.server.cli.tables import stdout_console
from numaserve.server.client.remote import RemoteServer
from numaserve.server.profiling.machine import Machine, Rates, rates_between
from numaserve.server.profiling.machine_view import machine_view
from numaserve.server.service.process.key_sources import client_key
from numaserve.workers.interface.errors import OperatorError
from rich.console import Group
from rich.live import Live
from rich.text import Text

_URL = "http://127.0.0.1:8000"


def top(
    url: Annotated[
        str, typer.Argument(metavar="URL", help=f"URL of the server. Default: {_URL}.", show_default=False)
    ] = (_URL),
    *,
    seconds: Annotated[float, typer.Option(min=0.05, help="Seconds between two updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view, measured over --seconds, and exit.")] = False,
    model: Annotated[str | None, typer.Option(help="Name of the model to show. Default: the first model.")] = None,
    api_key_file: ApiKeyFile = None,
    ca_file: CaFile = None,
) -> None:
    """Show a server's queue, throughput, KV cache, nodes and steps, live. Ctrl-C exits."""
    look = _Look(RemoteServer(url, client_key(api_key_file), ca_file=ca_file), model)
    console = stdout_console()
    machine, _ = look.again()
    if once:
        time.sleep(seconds)
        console.print(machine_view(url, *look.again(), console.width))
        return
    view = machine_view(url, machine, None, console.width, console.height)
    with Live(view, console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(seconds)
            try:
                view = machine_view(url, *look.again(), console.width, console.height)
            except OperatorError as error:  # the server, or the model, may be available at the next look
                live.update(Group(Text(str(error), "red"), Text("Last state:\n", "dim"), view), refresh=True)
            else:
                live.update(view, refresh=True)


class _Look:
    """The observer of a server. It remembers the last report of steps, because a long step delays the next one."""

    def __init__(self, remote: RemoteServer, model: str | None) -> None:
        self._remote = remote
        self._path = "/machine" if model is None else f"/machine?model={quote(model)}"
        self._before: tuple[Machine, float] | None = None

    def again(self) -> tuple[Machine, Rates | None]:
        """Return the server's state, and its rates since the previous look, if there was one."""
        machine, at = self._remote.get(self._path, Machine), time.monotonic()
        rates = None
        if self._before is not None:
            before, then = self._before
            rates = rates_between(before, machine, at - then)
        if self._before is None or machine.costs:
            self._before = machine, at
        return machine, rates
