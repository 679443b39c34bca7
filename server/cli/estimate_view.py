"""The views of an estimate: tables, and a JSON record."""

from dataclasses import asdict
from typing import Any

from numaserve.server.cli.cache_columns import CacheColumns
from numaserve.server.cli.tables import figure_table, milliseconds, number
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.products import products_text
from numaserve.workers.planning.roofline.efficiency import Efficiencies
from numaserve.workers.planning.roofline.estimate import Estimate, Load
from numaserve.workers.planning.roofline.memory import NodeMemory
from numaserve.workers.planning.roofline.phases import OperationEstimate, PhaseEstimate
from rich.console import Group
from rich.table import Table
from rich.text import Text

_SHOWN = 0.002  # smallest fraction of a phase that has a row
_BOUNDS = {"read": "memory", "flops": "computing", "cores": "cores", "ranks": "other ranks"}


def estimate_view(name: str, options: DeploymentOptions, estimate: Estimate, efficiencies: Efficiencies) -> Group:
    """Return tables of memory and of both phases, with their totals."""
    load, settings, ranks = estimate.load, options.settings, len(estimate.cores)
    products = products_text(estimate.multiplied_by)
    weights = f"weights {settings.formats.linear or 'as published'}{products and f' ({products})'}"
    formats = f"{weights}, KV cache {settings.kv_cache_dtype}"
    heading = Text(
        f"{name} on {estimate.machine.name}: {formats}, {ranks} rank{'s' if ranks > 1 else ''};"
        f" {load.batch} x {_tokens(load)} tokens"
    )
    phases = [_phase_table(phase) for phase in (estimate.prefill, estimate.decode) if phase is not None]
    notes = [f"note: {note}" for note in estimate.notes]
    notes.append(f"kernel efficiencies were measured on {efficiencies.source or 'an unknown processor'}")
    return Group(
        heading,
        _memory_table(estimate.memory),
        *_advice(estimate),
        *phases,
        *(Text(f" {line}") for line in (*_totals(estimate), *notes)),
    )


def estimate_record(
    name: str, options: DeploymentOptions, estimate: Estimate, efficiencies: Efficiencies
) -> dict[str, Any]:
    """Return the estimate as a JSON object; times are in seconds."""
    return {
        "model": name,
        "weights": options.settings.formats.linear or "as published",
        "multiplied_by": estimate.multiplied_by,
        "kv_cache": options.settings.kv_cache_dtype,
        "machine": estimate.machine.model_dump(),
        "efficiencies": efficiencies.source,
        "load": asdict(estimate.load),
        "cores": estimate.cores,
        "fits": estimate.fits,
        "remedies": estimate.remedies,
        "memory": [asdict(node) for node in estimate.memory],
        "prefill": _phase_record(estimate.prefill),
        "decode": None if estimate.decode is None else _phase_record(estimate.decode),
        "ttft_s": estimate.ttft_s,
        "tpot_s": estimate.tpot_s,
        "output_tokens_s": estimate.output_tokens_s,
    }


def _tokens(load: Load) -> str:
    return f"({load.input_len} + {load.output_len})" if load.output_len else str(load.input_len)


def _totals(estimate: Estimate) -> list[str]:
    load, decode = estimate.load, estimate.decode
    first, least = milliseconds(estimate.ttft_s), milliseconds(estimate.prefill.bound_s * load.batch)
    prefill = f"{load.batch * load.input_len / estimate.ttft_s:.0f}"
    if decode is None:
        return [f"last prompt answered after {first}, lower bound {least}", f"{prefill} tokens/s"]
    return [
        f"time to first token (TTFT) {first}, lower bound {least}",
        f"time per output token (TPOT) {milliseconds(decode.seconds)}, lower bound {milliseconds(decode.bound_s)}: "
        f"a rank reads {decode.nbytes / 1000000000.0:.2f} GB per token",
        f"{estimate.output_tokens_s:.1f} tokens/s in decoding, {prefill} tokens/s in prefill",
    ]


def _phase_record(phase: PhaseEstimate) -> dict[str, Any]:
    return asdict(phase) | {"nbytes": phase.nbytes, "bound_s": phase.bound_s}


def _memory_table(nodes: list[NodeMemory]) -> Table:
    caches = CacheColumns(any(node.states for node in nodes))
    sums = ("needed", "available", "fits")
    rows = figure_table("Memory", "node", "ranks", "weights", *caches.names, "scratch (about)", *sums)
    for node in nodes:
        cached = caches.sizes(node.kv_cache, node.states)
        sizes = (node.weights, *cached, node.scratch, node.needed, node.usable)
        rows.add_row(str(node.node), str(node.ranks), *map(format_bytes, sizes), "yes" if node.fits else "no")
    return rows


def _advice(estimate: Estimate) -> list[Text]:
    if estimate.fits:
        return []
    return [
        Text(" The model does not fit. Each of these changes would make it fit:"),
        *(Text(f"   {each}") for each in estimate.remedies),
    ]


def _phase_table(phase: PhaseEstimate) -> Table:
    steps = f"{phase.steps} step{'s' if phase.steps > 1 else ''}"
    title = f"{phase.name}, rank {phase.rank}: {steps}, {milliseconds(phase.seconds)}"
    rows = figure_table(title, "operation", "calls", "MB", "GFLOP", "ms", "share", "of bound", "bound by")
    for cost in phase.costs:
        if cost.seconds >= _SHOWN * phase.seconds:
            rows.add_row(*_cells(cost, phase.seconds))
    rows.add_section()
    total = sum(cost.flops for cost in phase.costs)
    bound = f"{phase.bound_s / phase.seconds:.0%}"
    rows.add_row("all", "", number(phase.nbytes / 1e6), number(total / 1e9), number(phase.seconds * 1e3), "", bound, "")
    return rows


def _cells(cost: OperationEstimate, whole: float) -> tuple[str, ...]:
    return (
        cost.name if cost.weights == "bf16" else f"{cost.name} {cost.weights}",
        str(cost.calls),
        number(cost.nbytes / 1e6),
        number(cost.flops / 1e9),
        number(cost.seconds * 1e3),
        f"{cost.seconds / whole:.1%}",
        f"{cost.bound_s / cost.seconds:.0%}" if cost.bound_s else "",
        _BOUNDS[cost.bound],
    )
