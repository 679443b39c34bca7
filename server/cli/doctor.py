"""``numaserve doctor``: checks and measurements of a new host before it serves."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from numaserve.server.cli.doctor_view import findings_view, summary
from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.doctor.checks import check_host
from numaserve.workers.planning.doctor.findings import Finding
from numaserve.workers.planning.doctor.host import Host, read_host

EXIT_PROBLEM = 1
_SUFFIXES = (".yaml", ".yml")  # of files that `numaserve plan --host` takes


def doctor(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Check the settings only, and measure nothing.")] = False,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML file to write the measured speed to, for `numaserve plan --host FILE`."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Check the settings of this host, measure its speed, and state what to change.

    The command changes nothing. Measurements take up to a minute. The exit status is 1 if there is a problem.
    """
    if write is not None:
        _check_file(write, quick)
    # Imported here, because other commands do not need the parts of a benchmark.
    from numaserve.server.cli.bench_report import MachineReport  # noqa: PLC0415

    host = _this_host()
    findings = check_host(host)
    record: dict[str, Any] = {"processor": host.processor.name, "checks": findings}
    with MachineReport("doctor", None) as report:
        if not as_json:
            report.console.print(findings_view("Settings", findings))
        if not quick and (host.kernels is not None or write is not None):
            measured, figures = _measure(host, report.say, write)
            record |= figures
            if not as_json:
                report.console.print(findings_view("Measurements", measured))
            findings = [*findings, *measured]
    if as_json:
        typer.echo(msgspec.json.encode(record).decode())
    else:
        report.console.print(summary(findings), markup=False, highlight=False)
    if any(each.status == "problem" for each in findings):
        raise typer.Exit(EXIT_PROBLEM)


def _check_file(path: Path, quick: bool) -> None:
    """Raise `OperatorError` for a file that could not be written or planned with, before a minute of measurements."""
    if quick:
        raise OperatorError("--write writes measurements, and --quick makes none: leave one of them out")
    if path.suffix not in _SUFFIXES:
        raise OperatorError(f"--write {path}: the name of a host file ends with .yaml or .yml")
    if not path.parent.is_dir():
        raise OperatorError(f"--write {path}: the folder does not exist")


def _this_host() -> Host:
    try:
        kernels = instruction_set()
        return read_host(kernels=kernels.name, unbuilt=kernels.unbuilt)
    except OperatorError as error:
        return read_host(refusal=str(error))


def _measure(host: Host, say: Callable[[str], None], write: Path | None) -> tuple[list[Finding], dict[str, Any]]:
    """Return the rows of the measurements, and what JSON adds to the checks."""
    from numaserve.workers.bench.host import measure_host  # noqa: PLC0415 starts the native kernels
    from numaserve.workers.planning.doctor.comparison import compare_rates, reference_of  # noqa: PLC0415
    from numaserve.workers.planning.doctor.rates import host_file, machine_from  # noqa: PLC0415

    rates, reference = measure_host(host.topology, say), reference_of(host)
    findings = compare_rates(rates, reference)
    if write is not None:
        name = host.processor.name or "this host"
        text = host_file(machine_from(rates, host.topology, name), rates.ceilings[0].isa)
        try:
            write.write_text(text)
        except OSError as error:
            raise OperatorError(f"--write {write}: cannot write the file: {error.strerror}") from None
    return findings, {"host": reference and reference.name, "measurements": findings, "rates": rates}
