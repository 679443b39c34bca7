"""``numaserve bench``: benchmarks of servers, as clients see them, and of their parts on this machine."""

from pathlib import Path
from typing import Annotated

import typer
from numaserve.server.cli import bench_options as shared
from numaserve.server.cli.bench_host import bench_host
from numaserve.server.cli.bench_load import bench_load
from numaserve.server.cli.bench_machine import bench_kernels, bench_ring
from numaserve.server.cli.bench_offline import bench_offline
from numaserve.server.cli.bench_run import check_completed, run_load
from numaserve.server.cli.tables import stdout_console
from numaserve.server.loadtest.options import Traffic, Workload, parse_rates
from numaserve.server.loadtest.report.goodput import parse_goodput
from numaserve.workers.interface.errors import OperatorError

bench = typer.Typer(
    help="Benchmark servers over HTTP, or the parts of a server on this machine.", rich_markup_mode=None
)
bench.command("kernels")(bench_kernels)
bench.command("ring")(bench_ring)
bench.command("offline")(bench_offline)
bench.command("load")(bench_load)
bench.command("host")(bench_host)


@bench.callback(invoke_without_command=True)
def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench.command("serve")
@shared.takes_load
def bench_serve(
    more_goodput: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="NAME:MS")] = None,
    *,
    base_url: Annotated[str, typer.Option(help="URL of the server, with or without /v1. No other host is contacted.")],
    request_rate: Annotated[
        list[str] | None,
        typer.Option(
            help="Requests per second with Poisson arrivals, or inf. Repeat the option for a sweep. "
            "Default: inf, or the timestamps of a trace."
        ),
    ] = None,
    goodput: Annotated[
        list[str] | None, typer.Option(help="Latency objectives in milliseconds, such as ttft:500 tpot:50 e2el:10000.")
    ] = None,
    output_file: shared.OutputFile = None,
    output_details: shared.OutputDetails = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="File for a plot of latency against throughput: .png, .svg or .html. It needs matplotlib."),
    ] = None,
    workload: Workload,
    traffic: Traffic,
) -> None:
    """Benchmark a server of the OpenAI API and report throughput and latency as clients see them."""
    rates = parse_rates(request_rate or [])
    if more_goodput and not goodput:
        raise OperatorError(f"unexpected argument: {more_goodput[0]}")
    limits = parse_goodput([*(goodput or []), *(more_goodput or [])])
    # Imported here, because other commands need neither an HTTP client nor numpy.
    from numaserve.server.loadtest import session  # noqa: PLC0415

    output = session.Output(stdout_console(), output_file, output_details, plot)
    work = session.bench_serve(base_url, workload, traffic, rates=rates, limits=limits, output=output)
    check_completed(run_load(work))


@bench.command("compare")
@shared.takes_load
def bench_compare(
    base_urls: Annotated[
        list[str],
        typer.Argument(metavar="URL URL...", help="URLs of the servers. Ratios are relative to the first server."),
    ],
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs per server.")] = 3,
    pause: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait before each run, so that the previous run is over.")
    ] = 3.0,
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="Requests per second with Poisson arrivals, or inf. Default: inf, or the timestamps of a trace."
        ),
    ] = None,
    output_file: shared.OutputFile = None,
    output_details: shared.OutputDetails = False,
    workload: Workload,
    traffic: Traffic,
) -> None:
    """Benchmark servers alternately (A B A B) with the same requests and report the ratios, each with its spread."""
    if len(base_urls) < 2:
        raise OperatorError("a comparison needs at least two URLs: name another server")
    rates = parse_rates([request_rate] if request_rate else [])
    if len(rates) > 1:
        raise OperatorError("a comparison runs at one --request-rate: set the option once")
    from numaserve.server.loadtest import session  # noqa: PLC0415

    output = session.Output(stdout_console(), output_file, output_details)
    rate = rates[0] if rates else None
    work = session.bench_compare(base_urls, workload, traffic, rate=rate, rounds=rounds, pause_s=pause, output=output)
    check_completed(run_load(work))
