"""``numaserve agent``: runs the workers of one pipeline stage for a front end on another host."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from numaserve.server.common.key_files import write_key_file
from numaserve.server.config.serve import LogFormat
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.host_links import parse_address


def agent(
    listen: Annotated[
        str | None,
        typer.Option(
            help="Address and port to listen at, as HOST:PORT. The agent listens nowhere else. Port 0 takes any."
        ),
    ] = None,
    *,
    key_file: Annotated[
        Path | None, typer.Option(help="File of the agent's secret key, of mode 0600, from --new-key.")
    ] = None,
    front_ends: Annotated[
        Path | None,
        typer.Option(
            help="File of the public keys of the front ends that may use the agent, one per line. It is read for each "
            "connection."
        ),
    ] = None,
    rows_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="First port of the ranks, which listen for hidden states while they serve. Rank R has the port R "
            "numbers above. 0 takes any free ports. Default: the port after --listen.",
        ),
    ] = None,
    weights_cache_gib: Annotated[
        float, typer.Option(min=0, max=1 << 16, help="Maximum disk space for packed weights, in GiB. 0 keeps none.")
    ] = 64.0,
    log_format: Annotated[str, typer.Option(help="Format of the log: `text`, `json` or `auto`.")] = "auto",
    new_key: Annotated[
        Path | None,
        typer.Option(
            help="Write a new secret key to this new file, print its public key, and exit.", show_default=False
        ),
    ] = None,
) -> None:
    """Run the workers of one pipeline stage for a front end on another host."""
    if new_key is not None:
        typer.echo(write_key_file(new_key).public)
        return
    if listen is None or key_file is None or front_ends is None:
        raise OperatorError("an agent needs --listen, --key-file and --front-ends: set all three, or --new-key alone")
    if log_format not in get_args(LogFormat):
        raise OperatorError(f"--log-format is '{log_format}': set `text`, `json` or `auto`")
    # Imported late: a new key, and mistakes in the options, do not need the server.
    from numaserve.server.agent.hosted import HostOptions  # noqa: PLC0415
    from numaserve.server.agent.service import run_agent  # noqa: PLC0415
    from numaserve.server.service.process.logs import set_up_logging  # noqa: PLC0415

    try:
        address = parse_address(listen)
    except ValueError as error:
        raise OperatorError(f"--listen {error}, not '{listen}'") from None
    first = rows_port if rows_port is not None else address.port and address.port + 1
    set_up_logging("info", cast("LogFormat", log_format))
    run_agent(HostOptions(address, first, int(weights_cache_gib * (1 << 30))), key_file, front_ends)
