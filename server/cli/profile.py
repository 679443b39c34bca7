"""``numaserve profile URL``: the time of a running server's steps, by operation."""

from typing import Annotated

import msgspec
import typer
from numaserve.server.cli.shared_options import ApiKeyFile, CaFile
from numaserve.server.cli.tables import stdout_console
from numaserve.server.profiling.measure import one_stream, watch
from numaserve.server.profiling.remote import Remote
from numaserve.server.profiling.table import ceilings_view, phase_view
from numaserve.server.service.process.key_sources import client_key
from numaserve.workers.interface.errors import OperatorError


def profile(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the server, such as http://127.0.0.1:8000.")],
    *,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds to profile the traffic of other clients, instead of sending a request."),
    ] = None,
    prompt_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="Prompt tokens of the request that is sent, at most the context length of an encoder.",
        ),
    ] = 512,
    output_tokens: Annotated[int, typer.Option(min=3, help="Output tokens of the request that is sent.")] = 64,
    rank: Annotated[
        int, typer.Option(min=0, help="Number of the rank whose operations to show. 0 is the first rank.")
    ] = 0,
    api_key_file: ApiKeyFile = None,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for all ranks.")] = False,
) -> None:
    """Show the time of each operation of a step, compared with the limits of the machine."""
    remote = Remote(url, client_key(api_key_file), ca_file=ca_file)
    phases = one_stream(remote, prompt_tokens, output_tokens) if seconds is None else watch(remote, seconds)
    shown = [phase for phase in phases if phase.rank == rank]
    if not shown:
        raise OperatorError(
            f"--rank {rank} does not exist: the server has ranks 0 to {max(phase.rank for phase in phases)}"
        )
    if as_json:
        typer.echo(msgspec.json.encode([phase.record() for phase in phases]).decode())
        return
    console = stdout_console()
    for phase in shown:
        console.print(phase_view(phase, [other for other in phases if other.name == phase.name]))
    console.print(ceilings_view(shown[0].ceilings))
