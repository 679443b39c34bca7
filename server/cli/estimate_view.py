"""The views of an estimate: tables, and a JSON record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from numaserve.server.cli.cache_columns import CacheColumns, image_tables
from numaserve.server.cli.kv_disk_plan import DiskPlan, disk_note, disk_record, disk_table
from numaserve.server.cli.tables import figure_table, milliseconds, number
from numaserve.workers.planning.estimate import Estimate, Load
from numaserve.workers.planning.images import NO_IMAGES
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.products import products_text
from numaserve.workers.planning.roofline.efficiency import Efficiencies
from numaserve.workers.planning.roofline.memory import NodeMemory
from numaserve.workers.planning.simulation.phases import OperationEstimate, PhaseEstimate
from rich.console import Group
from rich.table import Table
from rich.text import Text

_SHOWN = 0.002  # smallest fraction of a phase that has a row
_BOUNDS = {"read": "memory", "flops": "computing", "cores": "cores", "ranks": "other ranks"}
_Cell = Callable[[OperationEstimate, PhaseEstimate], str]


def _operation_name(cost: OperationEstimate, _: PhaseEstimate) -> str:
    return cost.time.name if cost.time.weights == "bf16" else f"{cost.time.name} {cost.time.weights}"


def _of_bound(cost: OperationEstimate, _: PhaseEstimate) -> str:
    return f"{cost.bound_s / cost.time.seconds:.0%}" if cost.bound_s else ""


_COLUMNS: Mapping[str, _Cell] = {
    "operation": _operation_name,
    "calls": lambda cost, _: str(cost.calls),
    "MB": lambda cost, _: number(cost.nbytes / 1e6),
    "GFLOP": lambda cost, _: number(cost.flops / 1e9),
    "ms": lambda cost, _: number(cost.time.seconds * 1e3),
    "share": lambda cost, phase: f"{cost.time.seconds / phase.seconds:.1%}",
    "of bound": _of_bound,
    "bound by": lambda cost, _: _BOUNDS[cost.time.bound],
}
# What threads and ranks wait for: see docs/plan.md.
_WAITS: Mapping[str, _Cell] = {
    "operation": _operation_name,
    "ms": _COLUMNS["ms"],
    "threads": lambda cost, _: f"{cost.time.threads:.0%}",
    "ranks": lambda cost, _: f"{cost.time.ranks:.0%}",
    "barriers": lambda cost, _: str(cost.time.barriers),
    "meetings": lambda cost, _: str(cost.time.meetings or ""),
    "MB from other ranks": lambda cost, _: number(cost.time.remote / 1e6),
}
_TOTALS: Mapping[str, Callable[[PhaseEstimate], str]] = {
    "operation": lambda _: "all",
    "MB": lambda phase: number(phase.nbytes / 1e6),
    "GFLOP": lambda phase: number(sum(cost.flops for cost in phase.costs) / 1e9),
    "ms": lambda phase: number(phase.seconds * 1e3),
    "of bound": lambda phase: f"{phase.bound_s / phase.seconds:.0%}",
    "ranks": lambda phase: f"{1 - phase.waiting_s / phase.seconds:.0%}",
    "barriers": lambda phase: str(sum(cost.time.barriers for cost in phase.costs)),
    "meetings": lambda phase: str(sum(cost.time.meetings for cost in phase.costs)),
    "MB from other ranks": lambda phase: number(sum(cost.time.remote for cost in phase.costs) / 1e6),
}


def estimate_view(
    name: str,
    options: DeploymentOptions,
    estimate: Estimate,
    efficiencies: Efficiencies,
    *,
    explain: bool,
    image_tiles: int = 0,
    disk: DiskPlan | None = None,
) -> Group:
    """Return tables of memory and of the phases, with their totals. `explain`: also what threads and ranks wait for.
    `image_tiles`: of the largest image. `disk`: the disk tier, if there is one."""
    ranks = len(estimate.cores)
    heading = Text(
        f"{name} on {estimate.machine.name}: {formats_text(options, estimate)}, {ranks} rank{'s' if ranks > 1 else ''};"
        f" {load_text(estimate.load)}"
    )
    made = [phase for phase in (estimate.prefill, estimate.decode, estimate.tile) if phase is not None]
    notes = [f"note: {note}" for note in (*estimate.notes, *step_notes(estimate))]
    notes += [] if disk is None else [disk_note(disk)]
    notes.append(f"kernel efficiencies were measured on {efficiencies.source or 'an unknown processor'}")
    return Group(
        heading,
        memory_table(estimate.memory),
        *image_tables([(str(node.node), node.images) for node in estimate.memory], "node"),
        *([] if disk is None else [disk_table(disk)]),
        *advice(estimate, "The model"),
        *phase_tables(made, explain=explain),
        *(Text(f" {line}") for line in (*_totals(estimate), *_image_totals(estimate, image_tiles), *notes)),
    )


def estimate_record(
    name: str,
    options: DeploymentOptions,
    estimate: Estimate,
    efficiencies: Efficiencies,
    *,
    image_tiles: int = 0,
    disk: DiskPlan | None = None,
) -> dict[str, Any]:
    """Return the estimate as a JSON object; times are in seconds. Only a model that reads images has `images` and
    `image`, and only a plan with a disk tier has `kv_disk`. `image_tiles`: of the largest image."""
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
        "memory": [memory_record(node) for node in estimate.memory],
        "step_tokens": estimate.step_tokens,
        "prefill": phase_record(estimate.prefill),
        "decode": None if estimate.decode is None else phase_record(estimate.decode),
        "ttft_s": estimate.ttft_s,
        "tpot_s": estimate.tpot_s,
        "output_tokens_s": estimate.output_tokens_s,
        **({} if disk is None else {"kv_disk": disk_record(disk)}),
        **({} if estimate.tile is None else {"image": _image_record(estimate.tile, image_tiles)}),
    }


def formats_text(options: DeploymentOptions, estimate: Estimate) -> str:
    """Return the formats of weights and KV cache as text."""
    products, settings = products_text(estimate.multiplied_by), options.settings
    weights = f"weights {settings.formats.linear or 'as published'}{products and f' ({products})'}"
    return f"{weights}, KV cache {settings.kv_cache_dtype}"


def load_text(load: Load) -> str:
    """Return the number of sequences and their tokens as text."""
    tokens = f"({load.input_len} + {load.output_len})" if load.output_len else str(load.input_len)
    return f"{load.batch} x {tokens} tokens"


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


def _image_totals(estimate: Estimate, tiles: int) -> list[str]:
    """Return a sentence about the time of images; none for a model that reads no images."""
    tile = estimate.tile
    if tile is None:
        return []
    largest = f"the largest image has {tiles} tiles and takes {milliseconds(tiles * tile.seconds)}"
    return [
        f"time of an image {milliseconds(tile.seconds)} per tile, lower bound {milliseconds(tile.bound_s)}: {largest}"
    ]


def step_notes(estimate: Estimate) -> list[str]:
    """Return a sentence about the size of steps that was chosen; none if there was no choice."""
    if len(estimate.step_sizes) == 1:
        return []
    *others, last = map(str, estimate.step_sizes)
    return [
        f"prompts are computed in steps of at most {estimate.step_tokens} tokens, chosen from {', '.join(others)} and"
        f" {last}: --chunked-prefill-size sets another size"
    ]


def memory_record(node: NodeMemory) -> dict[str, Any]:
    """Return the memory of a node as a JSON object."""
    record = asdict(node)
    if node.images == NO_IMAGES:
        del record["images"]
    return record


def _image_record(tile: PhaseEstimate, tiles: int) -> dict[str, Any]:
    return {
        "tile": phase_record(tile),
        "tile_s": tile.seconds,
        "tiles": tiles,
        "largest_image_s": tiles * tile.seconds,
    }


def phase_record(phase: PhaseEstimate) -> dict[str, Any]:
    """Return a phase as a JSON object; the steps of a phase are not listed."""
    record = asdict(phase)
    del record["step_seconds"]
    costs = [_cost_record(cost) for cost in phase.costs]
    return record | {"costs": costs, "nbytes": phase.nbytes, "bound_s": phase.bound_s}


def _cost_record(cost: OperationEstimate) -> dict[str, Any]:
    record = asdict(cost)
    time: dict[str, Any] = record.pop("time")
    return time | record


def memory_table(nodes: list[NodeMemory], title: str = "Memory") -> Table:
    """Return a table with the memory of each node of a host."""
    caches = CacheColumns(any(node.states for node in nodes), any(node.images.besides_weights for node in nodes))
    sums = ("needed", "available", "fits")
    rows = figure_table(title, "node", "ranks", "weights", *caches.names, "scratch (about)", *sums)
    for node in nodes:
        cached = caches.sizes(node.kv_cache, node.states, node.images)
        sizes = (node.weights, *cached, node.scratch, node.needed, node.usable)
        rows.add_row(str(node.node), str(node.ranks), *map(format_bytes, sizes), "yes" if node.fits else "no")
    return rows


def advice(estimate: Estimate, what: str) -> list[Text]:
    """Return lines with changes that would make `what` fit that does not."""
    if estimate.fits:
        return []
    return [
        Text(f" {what} does not fit. Each of these changes would make it fit:"),
        *(Text(f"   {each}") for each in estimate.remedies),
    ]


def phase_tables(phases: Sequence[PhaseEstimate], *, explain: bool) -> list[Table]:
    """Return a table of each phase, and with `explain` another one of what the threads and ranks wait for."""
    tables = [_phase_table(phase, _steps(phase), _COLUMNS) for phase in phases]
    if explain:
        tables += [_phase_table(phase, "what its threads and other ranks wait for", _WAITS) for phase in phases]
    return tables


def _steps(phase: PhaseEstimate) -> str:
    return f"{phase.steps} step{'s' if phase.steps > 1 else ''}, {milliseconds(phase.seconds)}"


def _phase_table(phase: PhaseEstimate, title: str, columns: Mapping[str, _Cell]) -> Table:
    rows = figure_table(f"{phase.name}, rank {phase.rank}: {title}", *columns)
    for cost in phase.costs:
        if cost.time.seconds >= _SHOWN * phase.seconds:
            rows.add_row(*(cell(cost, phase) for cell in columns.values()))
    rows.add_section()
    rows.add_row(*(_TOTALS[name](phase) if name in _TOTALS else "" for name in columns))
    return rows
