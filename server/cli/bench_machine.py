"""``numaserve bench kernels`` and ``numaserve bench ring``: the parts of a step, without a model."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from numaserve.server.cli.bench_options import Json
from numaserve.workers.interface.errors import OperatorError

_QUICK_SIZES = [16 << 10, 1 << 20]
_QUICK_SECONDS = 0.1


def bench_kernels(
    *,
    op: Annotated[
        list[str] | None,
        typer.Option(
            help="Operation to measure: gemm, encoders, experts, attention, latent, recurrent, small or barrier. "
            "Repeat the option for several. Default: all."
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Weight format for the operations gemm and encoders (matrix products). Repeat the option for several. "
            "Default: all."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of threads. Default: one per core of the first node.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer sizes, each for a shorter time.")] = False,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Measure block sizes of matrix products: the chosen block size and others."),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file to write the fastest block sizes of --sweep to, for `numaserve serve --blocking FILE`.",
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Measure each operation of a step, compared with the bandwidth and compute limits of a rank's cores."""
    # Imported here, because other commands do not need the native kernels.
    from numaserve.server.cli.bench_report import MachineReport  # noqa: PLC0415
    from numaserve.server.service.checks.instruction_set import instruction_set, kernels_digest  # noqa: PLC0415
    from numaserve.workers.bench import kernels  # noqa: PLC0415
    from numaserve.workers.bench.meter import Meter  # noqa: PLC0415
    from numaserve.workers.bench.rows import Rows  # noqa: PLC0415
    from numaserve.workers.bench.sweep import Findings  # noqa: PLC0415
    from numaserve.workers.planning.doctor.host import read_processor  # noqa: PLC0415
    from numaserve.workers.planning.found_blocking import FoundBlocking, Swept  # noqa: PLC0415

    isa = instruction_set().name
    sizes = kernels.QUICK if quick else kernels.Sizes()
    if sweep and op:
        raise OperatorError("--sweep measures only matrix products: leave --op out")
    if write is not None and not sweep:
        raise OperatorError("--write writes the block sizes that a sweep finds: add --sweep, or leave --write out")
    if write is not None and not write.parent.is_dir():
        raise OperatorError(f"--write {write}: the folder does not exist")
    found, chosen = Findings(), format or []
    cases = kernels.sweep_cases(chosen, sizes, found) if sweep else kernels.make_cases(op or [], chosen, sizes)
    with MachineReport("kernels", json) as report:
        team, cores = kernels.enter_node(threads)
        meter = Meter(team)
        report.console.print(f"{isa}, {team.size} threads; each time is the time of one operation", highlight=False)

        def rows() -> Rows:
            for index, case in enumerate(cases):
                report.say(f"{index + 1}/{len(cases)} {case.name}")
                yield from case.run(meter, cores.cpus)

        report.add(rows())
        if write is not None:
            swept = Swept.on(read_processor(), isa, kernels_digest())
            FoundBlocking(machine=swept, blocking=found.best()).write(write)
            report.console.print(f"block sizes written to {write}: {found.summary()}", markup=False, highlight=False)


def bench_ring(
    *,
    tp: Annotated[
        list[int] | None, typer.Option(min=2, help="Number of ranks. Repeat the option for several. Default: 2.")
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(
            min=4, help="Message size in bytes. Repeat the option for several. Default: several sizes from 4 KiB."
        ),
    ] = None,
    gloo: Annotated[
        bool, typer.Option("--gloo/--no-gloo", help="Also measure torch.distributed with gloo, if torch is installed.")
    ] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer sizes, each for a shorter time.")] = False,
    json: Json = None,
) -> None:
    """Measure an all-reduce over the ring with one thread per rank, compared with torch.distributed and gloo."""
    from numaserve.server.cli.bench_report import MachineReport  # noqa: PLC0415
    from numaserve.workers.bench.operations.ring import SIZES, bench_ring  # noqa: PLC0415

    sizes = size or (_QUICK_SIZES if quick else SIZES)
    if any(each % 4 for each in sizes):
        raise OperatorError("--size must be a multiple of 4 bytes, because messages are fp32")
    with MachineReport("ring", json) as report:
        if gloo and find_spec("torch") is None:
            report.console.print(
                "skipping torch.distributed, because torch is not installed: run `pip install torch`",
                markup=False,
            )
            gloo = False
        for ranks in tp or [2]:
            seconds = _QUICK_SECONDS if quick else 0.5
            report.add(bench_ring(ranks, sizes, seconds, gloo=gloo, say=report.say))
