"""``numaserve topology --models``: the placement of each model of a models file, without loading."""

from pathlib import Path

from numaserve.server.cli.cache_columns import CacheColumns
from numaserve.server.gateway.models.models_file import read_models_file
from numaserve.server.gateway.models.placement import Placed, check_together, place_models
from numaserve.workers.planning.images import total
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.planning.topology import Topology, format_cpu_list
from rich.console import Console
from rich.table import Table


def print_models(console: Console, path: Path, machine: Topology, isa: str, max_loaded: int | None = None) -> None:
    """Print the placement of each model. Raises `OperatorError` for models that cannot be loaded together."""
    models = read_models_file(path, max_loaded)
    plan = place_models(models, machine, isa)
    deployments = [each.deployment for each in plan.placed.values()]
    caches = CacheColumns(any(each.has_states for each in deployments), any(each.reads_images for each in deployments))
    table = Table(
        *("model", "node", "cores", "ranks", "weights", *caches.names, "scratch", "context", "loaded"),
        title="Models",
        title_justify="left",
    )
    for name, placed in plan.placed.items():
        for row in _rows(name, placed, caches):
            table.add_row(*row)
    console.print(table)
    for name, placed in plan.placed.items():
        for note in placed.deployment.notes:
            console.print(f"note on {name}: {note}")
    for node, capacity in plan.capacity.items():
        taken = sum(each.memory.get(node, 0) for each in plan.placed.values() if each.stays)
        console.print(
            f"node {node}: models that are loaded at the start use {format_bytes(taken)} of {format_bytes(capacity)}"
        )
    check_together(plan, models.max_loaded)


def _rows(name: str, placed: Placed, caches: CacheColumns) -> list[tuple[str, ...]]:
    """Return a row for each node; the first row also has the figures of the model."""
    place, rows = placed.spec.place, list[tuple[str, ...]]()
    when = "pinned" if place.pinned else place.load
    for node in placed.part.nodes:
        ranks = [each for each in placed.deployment.ranks if each.node == node.id]
        sizes = (
            sum(each.weight_bytes for each in ranks),
            *caches.sizes(
                sum(each.kv_bytes for each in ranks),
                sum(each.state_bytes for each in ranks),
                total(each.images for each in ranks),
            ),
            sum(each.scratch_bytes for each in ranks),
        )
        cores = format_cpu_list(cpu for each in ranks for cpu in each.cpus)
        whole = ("", "", "") if rows else (name, str(placed.context_length), when)
        rows.append((whole[0], str(node.id), cores, str(len(ranks)), *map(format_bytes, sizes), *whole[1:]))
    return rows
