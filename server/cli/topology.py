"""``numaserve topology``: the cores and memory that this process may use, and the placement of a model's ranks."""

from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.server.cli.cache_columns import CacheColumns, image_tables
from numaserve.server.cli.config_options import takes_settings
from numaserve.server.cli.shared_options import MAX_LOADED, check_for_several
from numaserve.server.cli.tables import stdout_console
from numaserve.server.config.serve import load_config
from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.server.service.model.by_model import with_model_defaults
from numaserve.server.service.model.deployment import deployment_options
from numaserve.server.service.model.model_argument import served_name
from numaserve.workers.models.load import open_model, read_config
from numaserve.workers.planning.deployment import Deployment, make_deployment
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.planning.placement import place_ranks
from numaserve.workers.planning.topology import Topology, format_cpu_list, read_topology
from numaserve.workers.weights.hub import resolve_model
from rich.console import Console
from rich.table import Table

_KEYS = (
    *("tp", "context_length", "max_running_requests", "chunked_prefill_size", "kv_cache_gib", "state_cache_gib"),
    "image_memory_gib",
    *("mem_fraction_static", "threads_per_worker", "reserve_core", "draft_model", "draft_quantization", "speculative"),
)


@takes_settings(*_KEYS)
def topology(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Model to plan for: Hugging Face folder, .gguf file, hub id, or 'demo'."),
    ] = None,
    *,
    options: dict[str, Any],
    models: Annotated[
        Path | None, typer.Option(help="YAML file of several models to plan for instead of MODEL.")
    ] = None,
    max_loaded: Annotated[int | None, MAX_LOADED] = None,
) -> None:
    """Show the cores and memory that this process may use, and the placement of ranks."""
    config = load_config(options | {"model": model or "none"})
    machine = read_topology()
    console = stdout_console()
    console.print(_nodes_table(machine))
    isa = instruction_set().name
    _print_facts(console, machine, isa)
    if models is not None:
        from numaserve.server.cli.several import print_models  # noqa: PLC0415 not needed for one model

        print_models(console, models, machine, isa, max_loaded)
        return
    check_for_several(max_loaded)
    if model is None:
        placement = place_ranks(machine, config.tp, config.threads_per_worker, config.reserve_core)
        table = Table("rank", "node", "cores", title="Ranks (name a model to see memory)", title_justify="left")
        for rank, each in enumerate(placement.ranks):
            table.add_row(str(rank), str(each.node), format_cpu_list(each.cpus))
        console.print(table)
        _print_notes(console, placement.notes)
        return
    path = resolve_model(model)
    files = open_model(path, config.settings.mmproj)
    wanted = deployment_options(with_model_defaults(config, files), path, isa)
    deployment = make_deployment(wanted, read_config(files, wanted.settings), machine)
    console.print(_ranks_table(deployment, served_name(model, path)))
    for table in image_tables([(str(rank.rank), rank.images) for rank in deployment.ranks], "rank"):
        console.print(table)
    console.print(f"scratch for steps of at most {deployment.capacity.max_step_tokens} tokens")
    if deployment.has_states:
        running, cached = deployment.capacity.max_slots, deployment.capacity.num_snapshots
        console.print(f"states of {running} running and {cached} cached sequences")
    for window, pages in deployment.window_tables:
        console.print(f"{pages} KV pages for layers with a window of {window.tokens} tokens")
    _print_notes(console, deployment.notes)


def _nodes_table(machine: Topology) -> Table:
    table = Table(
        "node", "cores", "count", "hyperthreads left out", "memory", "free", title="NUMA nodes", title_justify="left"
    )
    for node in machine.nodes:
        table.add_row(
            str(node.id),
            format_cpu_list(node.cpus),
            str(len(node.cpus)),
            format_cpu_list(node.siblings_left_out) or "none",
            format_bytes(node.memory_bytes),
            format_bytes(node.free_bytes),
        )
    return table


def _print_facts(console: Console, machine: Topology, isa: str) -> None:
    reserved = ", ".join(f"{count} of {format_bytes(size)}" for size, count in machine.huge_pages.reserved if count)
    limit, memlock, quota = machine.cgroup_free_bytes, machine.memlock_bytes, machine.cpu_quota
    console.print(f"instruction set     {isa}")
    console.print(f"CPU quota           {'no limit' if quota is None else f'{quota:.4g} of {machine.cores} cores'}")
    console.print(f"cgroup memory left  {'no limit' if limit is None else format_bytes(limit)}")
    console.print(f"huge pages          transparent: {machine.huge_pages.transparent}; reserved: {reserved or 'none'}")
    console.print(f"memlock             {'unlimited' if memlock is None else format_bytes(memlock)}\n")


def _ranks_table(deployment: Deployment, name: str) -> Table:
    dtype = deployment.launches[0].settings.kv_cache_dtype
    capacity = deployment.capacity
    title = f"{name}: context {capacity.context_length} tokens, {capacity.num_pages} KV pages in {dtype}"
    caches = CacheColumns(deployment.has_states, deployment.reads_images)
    heads = ("rank", "node", "cores", "weights", *caches.names, "scratch (about)")
    table = Table(*heads, title=title, title_justify="left")
    for rank in deployment.ranks:
        sizes = (rank.weight_bytes, *caches.sizes(rank.kv_bytes, rank.state_bytes, rank.images), rank.scratch_bytes)
        table.add_row(
            str(rank.rank), str(rank.node), format_cpu_list(rank.cpus), *(format_bytes(size) for size in sizes)
        )
    return table


def _print_notes(console: Console, notes: tuple[str, ...]) -> None:
    for note in notes:
        console.print(f"note: {note}")
