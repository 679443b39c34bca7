"""The start report: the placement of the model on the machine, logged before the weights are loaded.

On a terminal the report is a block of aligned lines; in a JSON log it is one record with a field for each figure.
"""

import logging

from numaserve.server.common.version import installed_version
from numaserve.server.images.geometry import most_tiles
from numaserve.server.kv_disk.store import Store
from numaserve.server.service.assembly import Checked
from numaserve.server.service.images import store_tiles
from numaserve.server.service.process.logs import block
from numaserve.workers.interface.images import ImageInput
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.planning.deployment import Deployment, RankResources
from numaserve.workers.planning.images import total
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.planning.products import products_text
from numaserve.workers.planning.topology import Topology, format_cpu_list

_log = logging.getLogger(__name__)


def log_start(checked: Checked) -> None:
    """Log the report at level `info`."""
    _log.info("serving %s", checked.name, extra=block(_rows(checked), _fields(checked)))


def _by_node(checked: Checked) -> dict[tuple[str, int], list[RankResources]]:
    """Return the ranks of each node; a node has the address of its agent, or "" on this host."""
    nodes: dict[tuple[str, int], list[RankResources]] = {}
    for rank in checked.deployment.ranks:
        nodes.setdefault((_host_of(checked, rank), rank.node), []).append(rank)
    return nodes


def _host_of(checked: Checked, rank: RankResources) -> str:
    """Return the address of the rank's agent, or "" on this host."""
    stage = rank.rank // checked.deployment.launches[0].world_size
    host = checked.hosts[stage] if checked.hosts else None
    return "" if host is None else str(host.agent.address)


def _machines(checked: Checked) -> list[Topology]:
    """Return the hosts of the stages; this one if there is one host."""
    return [checked.machine if each is None else each.topology for each in checked.hosts] or [checked.machine]


def _sizes(ranks: list[RankResources]) -> tuple[int, int, int]:
    """Return the bytes of the weights, of the KV cache and of recurrent states."""
    return (
        sum(each.weight_bytes for each in ranks),
        sum(each.kv_bytes for each in ranks),
        sum(each.state_bytes for each in ranks),
    )


def _cpus(ranks: list[RankResources]) -> list[int]:
    return [cpu for each in ranks for cpu in each.cpus]


def _rows(checked: Checked) -> list[tuple[str, str]]:
    """Return the report as labels and texts."""
    config, deployment, nodes = checked.config, checked.deployment, _by_node(checked)
    ranks, cores = len(deployment.ranks), len(_cpus(deployment.ranks))
    capacity = deployment.capacity
    weights, kv_cache, states = _sizes(deployment.ranks)
    products = products_text(deployment.multiplied_by)
    machines = _machines(checked)
    usable_nodes, usable_cores = sum(len(each.nodes) for each in machines), sum(each.cores for each in machines)
    machine = (
        f"{f'{len(machines)} hosts, ' if checked.hosts else ''}{len(nodes)} of {_count(usable_nodes, 'node')},"
        f" {_count(ranks, 'rank')} on {cores} of {_count(usable_cores, 'core')}, {checked.instruction_set or 'torch'}"
    )
    formats = f"{format_bytes(weights)} in {', '.join(deployment.weight_formats)}{products and f' ({products})'}"
    dtype = deployment.launches[0].settings.kv_cache_dtype
    draft = f" (draft model {config.draft_model})" if "draft_model" in checked.drafters else ""
    return [
        ("task", config.served_task),
        ("machine", machine),
        *((f"{host} node {node}".lstrip(), _on_node(own)) for (host, node), own in nodes.items()),
        ("weights", formats),
        ("context", f"{capacity.context_length} tokens, at most {capacity.max_slots} sequences at a time"),
        ("KV cache", f"{capacity.num_pages * PAGE_SIZE} tokens, {format_bytes(kv_cache)} in {dtype}"),
        *_window_rows(deployment),
        *_state_rows(deployment, states),
        *_image_rows(checked),
        *_adapter_rows(checked),
        *_disk_rows(checked),
        ("speculation", ", ".join(checked.drafters) + draft if checked.drafters else "off"),
    ]


def _window_rows(deployment: Deployment) -> list[tuple[str, str]]:
    return [
        ("window", f"{pages * PAGE_SIZE} tokens in layers with a window of {window.tokens}")
        for window, pages in deployment.window_tables
    ]


def _state_rows(deployment: Deployment, nbytes: int) -> list[tuple[str, str]]:
    running, cached = deployment.capacity.max_slots, deployment.capacity.num_snapshots
    return [("states", f"{running} running and {cached} cached, {format_bytes(nbytes)}")] if nbytes else []


def _image_rows(checked: Checked) -> list[tuple[str, str]]:
    images, config = checked.images, checked.config
    if images is None:
        return []
    of_ranks = total(rank.images for rank in checked.deployment.ranks)
    largest = most_tiles(images, config.settings.max_image_pixels)
    return [
        (
            "images",
            f"at most {config.max_images} in a request, each of up to {_count(largest, 'tile')} of"
            f" {images.sizes.shape} and {images.rows_per_tile} tokens",
        ),
        (
            "image store",
            f"{format_bytes(of_ranks.pixels)} for {_count(store_tiles(config, images), 'tile')}, besides"
            f" {format_bytes(of_ranks.features)} for features and {format_bytes(of_ranks.runs)} for runs of the tower",
        ),
    ]


def _adapter_rows(checked: Checked) -> list[tuple[str, str]]:
    adapters = checked.adapters
    if adapters is None:
        return []
    return [("adapters", f"{', '.join(adapters.loaded) or 'none'}; memory for {adapters.num_places}")]


def _disk_rows(checked: Checked) -> list[tuple[str, str]]:
    disk = checked.kv_disk
    return [] if disk is None else [("disk tier", f"at most {format_bytes(disk.limit_bytes)} in {disk.folder}")]


def _on_node(ranks: list[RankResources]) -> str:
    weights, kv_cache, states = _sizes(ranks)
    numbers, cpus = format_cpu_list(each.rank for each in ranks), format_cpu_list(_cpus(ranks))
    name = "rank" if len(ranks) == 1 else "ranks"
    sizes = f"weights {format_bytes(weights)}, KV cache {format_bytes(kv_cache)}"
    images = total(each.images for each in ranks).besides_weights
    more = [f", {each} {format_bytes(nbytes)}" for each, nbytes in (("states", states), ("images", images)) if nbytes]
    return f"{name} {numbers} on cores {cpus}: {sizes}{''.join(more)}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _fields(checked: Checked) -> dict[str, object]:
    """Return the report as data; sizes are in bytes."""
    config, deployment = checked.config, checked.deployment
    weights, kv_cache, states = _sizes(deployment.ranks)
    return {
        "model": checked.name,
        "version": installed_version(),
        "task": config.served_task,
        "backend": config.backend,
        "instruction_set": checked.instruction_set,
        "usable_nodes": sum(len(each.nodes) for each in _machines(checked)),
        "usable_cores": sum(each.cores for each in _machines(checked)),
        "cores": len(_cpus(deployment.ranks)),
        "ranks": [
            {
                "rank": each.rank,
                **({"host": host} if (host := _host_of(checked, each)) else {}),
                "node": each.node,
                "cores": format_cpu_list(each.cpus),
                "weight_bytes": each.weight_bytes,
                "kv_bytes": each.kv_bytes,
                "state_bytes": each.state_bytes,
            }
            for each in deployment.ranks
        ],
        "weight_bytes": weights,
        "weight_formats": list(deployment.weight_formats),
        "multiplied_by": deployment.multiplied_by,
        "context_length": deployment.capacity.context_length,
        "max_running_requests": deployment.capacity.max_slots,
        "kv_cache_tokens": deployment.capacity.num_pages * PAGE_SIZE,
        "kv_cache_bytes": kv_cache,
        "kv_cache_dtype": deployment.launches[0].settings.kv_cache_dtype,
        "window_tokens": {str(window.tokens): pages * PAGE_SIZE for window, pages in deployment.window_tables},
        "cached_states": deployment.capacity.num_snapshots,
        "state_bytes": states,
        "speculative": list(checked.drafters) or "off",
        "draft_model": config.draft_model if "draft_model" in checked.drafters else None,
        **({} if checked.adapters is None else {"loras": list(checked.adapters.loaded)}),
        **({} if checked.kv_disk is None else {"kv_disk": _disk_fields(checked.kv_disk)}),
        **({} if checked.images is None else {"images": _image_fields(checked, checked.images)}),
    }


def _disk_fields(disk: Store) -> dict[str, object]:
    return {"path": str(disk.folder), "limit_bytes": disk.limit_bytes}


def _image_fields(checked: Checked, images: ImageInput) -> dict[str, object]:
    config, of_ranks = checked.config, total(rank.images for rank in checked.deployment.ranks)
    return {
        "max_images": config.max_images,
        "max_tiles": most_tiles(images, config.settings.max_image_pixels),
        **images.sizes.described,
        "store_tiles": store_tiles(config, images),
        "feature_tiles": checked.deployment.capacity.feature_tiles,
        "tower_bytes": of_ranks.tower,
        "run_bytes": of_ranks.runs,
        "feature_bytes": of_ranks.features,
        "pixel_bytes": of_ranks.pixels,
    }
