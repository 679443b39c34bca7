"""``numaserve bench kernels`` and ``numaserve bench ring``: the parts of a step, without a model."""

from importlib.util import find_spec
from typing import Annotated

import typer
from numaserve.server.cli.bench_options import Json
from numaserve.workers.errors import OperatorError

_QUICK_SIZES = [16 << 10, 1 << 20]
_QUICK_SECONDS = 0.1


def bench_kernels(
    *,
    op: Annotated[
        list[str] | None,
        typer.Option(help="gemm, experts, attention, latent, small or barrier; may be given again. Default: all."),
    ] = None,
    format: Annotated[
        list[str] | None, typer.Option(help="Weight format of gemm; may be given again. Default: all.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: one on each core of the first node.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes, each for a shorter time.")] = False,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="How much of a product to do at a time: what is chosen, and others."),
    ] = False,
    json: Json = None,
) -> None:
    """Measure the operations of a step one by one, beside what the cores of a rank can read and compute."""
    # Other commands do without the native kernels.
    from numaserve.server.cli.bench_report import MachineReport  # noqa: PLC0415
    from numaserve.server.service.instruction_set import instruction_set  # noqa: PLC0415
    from numaserve.workers.bench import kernels  # noqa: PLC0415
    from numaserve.workers.bench.rows import Rows  # noqa: PLC0415

    isa = instruction_set()
    sizes = kernels.QUICK if quick else kernels.Sizes()
    if sweep and op:
        raise OperatorError("--sweep is of matrix products alone: leave --op out")
    cases = kernels.sweep_cases(format or [], sizes) if sweep else kernels.make_cases(op or [], format or [], sizes)
    with MachineReport("kernels", json) as report:
        team, cores = kernels.enter_node(threads)
        report.console.print(f"{isa}, {team.size} threads; times are of one operation", highlight=False)

        def rows() -> Rows:
            for index, case in enumerate(cases):
                report.say(f"{index + 1}/{len(cases)} {case.name}")
                yield from case.run(team, cores.cpus)

        report.add(rows())


def bench_ring(
    *,
    tp: Annotated[list[int] | None, typer.Option(min=2, help="Ranks; may be given again. Default: 2.")] = None,
    size: Annotated[list[int] | None, typer.Option(min=4, help="Bytes; may be given again. Default: 4 KiB up.")] = None,
    gloo: Annotated[
        bool, typer.Option("--gloo/--no-gloo", help="Measure torch.distributed as well, if torch is installed.")
    ] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes, each for a shorter time.")] = False,
    json: Json = None,
) -> None:
    """Measure an all-reduce over the ring, one thread a rank, beside torch.distributed with gloo."""
    from numaserve.server.cli.bench_report import MachineReport  # noqa: PLC0415
    from numaserve.workers.bench.ring import SIZES, bench_ring  # noqa: PLC0415

    sizes = size or (_QUICK_SIZES if quick else SIZES)
    if any(each % 4 for each in sizes):
        raise OperatorError("--size: messages are fp32, so that sizes are multiples of 4 bytes")
    with MachineReport("ring", json) as report:
        if gloo and find_spec("torch") is None:
            report.console.print(
                "torch.distributed is left out: pip install 'numaserve[reference]' brings torch", markup=False
            )
            gloo = False
        for ranks in tp or [2]:
            seconds = _QUICK_SECONDS if quick else 0.5
            report.add(bench_ring(ranks, sizes, seconds, gloo=gloo, say=report.say))
