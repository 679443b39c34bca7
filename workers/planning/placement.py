"""The cores of each rank.

One rank per node is the natural case. More ranks make *virtual nodes*: a node's cores are cut into parts as equal
as possible, so that every part of the program also runs on a small machine. Fewer ranks leave the smallest nodes idle.

A CPU quota counts like fewer cores: the whole cores of the quota, on the fewest nodes that hold them. More threads
would exhaust the quota before the end of each period, and all threads would pause for the rest of the period.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.topology import Node, Topology


@dataclass(frozen=True)
class RankCores:
    """The cores of one rank, all on one node."""

    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """The ranks' cores. `front_end_cpus` is empty unless a core was reserved."""

    ranks: list[RankCores]
    front_end_cpus: tuple[int, ...]
    notes: tuple[str, ...]


def place_ranks(topology: Topology, tp: int | None, threads_per_worker: int | None, reserve_core: bool) -> Placement:
    """Give each of `tp` ranks (by default one per node) its cores. Raises `OperatorError` for too few cores."""
    if not topology.nodes:
        raise OperatorError("no NUMA node offers this process both cores and memory: widen its cpuset or CPU affinity")
    nodes, quota_notes = _within_quota(topology, tp)
    remedy = "raise the CPU quota" if quota_notes else "widen the cpuset"
    front_end: tuple[int, ...] = ()
    if reserve_core:
        nodes, front_end = _reserve_core(nodes, remedy)
    wanted = len(nodes) if tp is None else tp
    cores = sum(len(node.cpus) for node in nodes)
    if wanted > cores:
        reserved = " in addition to the reserved core" if reserve_core else ""
        raise OperatorError(
            f"--tp {wanted} needs {wanted} cores, but this process may use {cores}{reserved}: lower --tp to at most"
            f" {cores}, or {remedy}"
        )
    nodes, notes = _choose_nodes(nodes, wanted)
    ranks = [
        RankCores(node.id, part[:threads_per_worker])
        for node, count in zip(nodes, _ranks_per_node(nodes, wanted), strict=True)
        for part in _cut(node.cpus, count)
    ]
    return Placement(ranks, front_end, (*quota_notes, *notes))


def _within_quota(topology: Topology, tp: int | None) -> tuple[list[Node], tuple[str, ...]]:
    """Return nodes with at most as many cores as the CPU quota has whole ones, and notes for the operator.

    Without `tp` the nodes are the fewest that hold these cores; with `tp` there is one node per rank, if possible.
    """
    quota, nodes = topology.cpu_quota, list(topology.nodes)
    if quota is None or quota >= topology.cores:
        return nodes, ()
    threads = max(1, int(quota))
    if tp is None:
        largest = sorted((len(node.cpus) for node in nodes), reverse=True)
        count = next(count for count in range(1, len(nodes) + 1) if sum(largest[:count]) >= threads)
    else:
        count = min(tp, len(nodes), threads)
    chosen = _roomiest(nodes, count, -(-threads // count))
    kept = [
        replace(node, cpus=_spread(node.cpus, share))
        for node, share in zip(chosen, _shares(threads, [len(node.cpus) for node in chosen]), strict=True)
    ]
    if quota < 1:
        consequence = "with less than one core, Linux pauses the server many times per second; raise the quota"
    else:
        consequence = "with more threads, Linux would pause the server many times per second"
    where = ", ".join(str(node.id) for node in kept)
    used = sum(len(node.cpus) for node in kept)
    allowed = f"allows {used} worker threads on node {where}"
    note = f"the CPU quota of {quota:.4g} of {topology.cores} cores {allowed}: {consequence}"
    return kept, (note,)


def _roomiest(nodes: list[Node], count: int, cores: int) -> list[Node]:
    """Return `count` nodes with `cores` cores or else the most; among equal nodes, those with the most free memory.

    Servers with one quota each that are started one after the other on a host then probably take different nodes.
    """
    ranked = sorted(nodes, key=lambda node: (-min(len(node.cpus), cores), -node.free_bytes, node.id))
    return sorted(ranked[:count], key=lambda node: node.id)


def _shares(total: int, sizes: list[int]) -> list[int]:
    """Divide `total`, or all that `sizes` hold, into shares as equal as `sizes` allow."""
    shares = [0] * len(sizes)
    for _ in range(min(total, sum(sizes))):
        shares[min((share, index) for index, share in enumerate(shares) if share < sizes[index])[1]] += 1
    return shares


def _spread(cpus: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return `count` of the cores, evenly over the node: neighbours share a cache, and its path to memory."""
    return tuple(cpus[index * len(cpus) // count] for index in range(count))


def _reserve_core(nodes: list[Node], remedy: str) -> tuple[list[Node], tuple[int, ...]]:
    """Take the first core of the first node: where interrupts go anyway by default."""
    first = nodes[0]
    if sum(len(node.cpus) for node in nodes) < 2:
        raise OperatorError(f"--reserve-core needs at least two cores: leave the option out, or {remedy}")
    smaller = replace(first, cpus=first.cpus[1:])
    return [node for node in (smaller, *nodes[1:]) if node.cpus], first.cpus[:1]


def _choose_nodes(nodes: list[Node], wanted: int) -> tuple[list[Node], tuple[str, ...]]:
    """At most `wanted` nodes, those with the most cores, in order of their numbers."""
    if wanted >= len(nodes):
        return nodes, ()
    largest = sorted(nodes, key=lambda node: (-len(node.cpus), node.id))[:wanted]
    idle = [str(node.id) for node in nodes if node not in largest]
    note = f"--tp {wanted} uses {wanted} of {len(nodes)} NUMA nodes: node {', '.join(idle)} stays idle"
    return [node for node in nodes if node in largest], (note,)


def _ranks_per_node(nodes: Sequence[Node], wanted: int) -> list[int]:
    """One rank for each node; each further one goes where ranks keep the most cores (the D'Hondt rule)."""
    counts = [1] * len(nodes)
    for _ in range(wanted - len(nodes)):
        best = max(range(len(nodes)), key=lambda index: (len(nodes[index].cpus) / (counts[index] + 1), -index))
        counts[best] += 1
    return counts


def _cut(cpus: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Contiguous parts whose sizes differ by at most one."""
    bounds = [len(cpus) * part // count for part in range(count + 1)]
    return [cpus[start:stop] for start, stop in itertools.pairwise(bounds)]
