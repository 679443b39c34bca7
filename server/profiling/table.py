"""Tables of a profile for a terminal."""

from collections.abc import Sequence

from numaserve.server.profiling.figures import OperationFigures, PhaseFigures
from numaserve.workers.interface.protocol import Ceilings
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

_SMALL = "not measured (the weights are smaller than twice the last-level cache)"
_SHOWN = 0.002  # the smallest part of a step that has a row
_DISTURBED = 0.05  # smallest waiting time of threads that is reported, as a part of their time


def phase_view(phase: PhaseFigures, ranks: Sequence[PhaseFigures]) -> Group:
    """Return the table of one rank's phase, and a line for each of the other `ranks`."""
    step = phase.costs[-1]
    title = f"{phase.name}, rank {phase.rank}: {phase.steps} steps of {phase.tokens / phase.steps:.4g} tokens"
    table = Table(
        Column("operation", no_wrap=True),
        *(Column(name, justify="right") for name in ("calls", "ms", "of step", "waiting", "MB", "GB/s")),
        *(Column(name, justify="right") for name in ("GFLOP", "GFLOP/s", "of ceiling")),
        title=f"{title}, {step.ms:.4g} ms each",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for cost in phase.costs[:-1]:
        if cost.share >= _SHOWN:
            table.add_row(*_cells(cost))
    table.add_section()
    table.add_row(*_cells(step))
    others = [rank for rank in ranks if rank.rank != phase.rank]
    lines = [f" rank {rank.rank}: {_waiting(rank.costs[-1])}" for rank in others]
    return Group(table, *map(Text, [*lines, *_other_load(ranks)]))


def _other_load(ranks: Sequence[PhaseFigures]) -> list[str]:
    """Return a line about other load on the cores of the ranks; none if there is little."""
    worst = max(ranks, key=lambda each: each.cpu_wait or 0.0)
    if worst.cpu_wait is None or worst.cpu_wait < _DISTURBED:
        return []
    return [
        f" other load: the threads of rank {worst.rank} waited {worst.cpu_wait:.0%} of their time for a core. The rates"
        " above are too low. Stop other programs on these cores and run the command again"
    ]


def ceilings_view(ceilings: Ceilings | None) -> Text:
    """Return a line with the ceilings that "of ceiling" refers to."""
    if ceilings is None:
        return Text(
            "\n ceilings: not measured, because requests were running or the backend is reference. With the backend "
            "native, retry when the server is idle."
        )
    threads = f"{ceilings.threads} thread{'s' if ceilings.threads > 1 else ''}, {ceilings.isa}"
    peaks = ", ".join(f"{format} {flops / 1e12:.3g} TFLOP/s" for format, flops in ceilings.flops_s.items())
    read = f"{ceilings.read_bytes_s / 1e9:.3g} GB/s" if ceilings.read_bytes_s else _SMALL
    return Text(f"\n ceilings, as measured ({threads}): memory reads {read}, {peaks}")


def _cells(cost: OperationFigures) -> list[str]:
    return [
        cost.name if cost.format in ("", "bf16") else f"{cost.name} {cost.format}",
        f"{cost.calls:.4g}" if cost.calls else "",
        f"{cost.ms:.3f}",
        f"{cost.share:.1%}",
        f"{cost.wait_ms:.3f}" if cost.wait_ms else "",
        f"{cost.mbytes:.3g}" if cost.gb_s else "",
        f"{cost.gb_s:.1f}" if cost.gb_s else "",
        f"{cost.mflops / 1e3:.3g}" if cost.gflop_s else "",
        f"{cost.gflop_s:.1f}" if cost.gflop_s else "",
        f"{cost.of_ceiling:.1%} {cost.ceiling}" if cost.of_ceiling else "",
    ]


def _waiting(step: OperationFigures) -> str:
    part = step.wait_ms / step.ms if step.ms else 0.0
    return f"{step.ms:.4g} ms per step, including {step.wait_ms:.3f} ms ({part:.1%}) of waiting for other ranks"
