"""The cores of each rank.

As many ranks as nodes is the natural case. More ranks make *virtual nodes*: a node's cores are cut into parts as equal
as possible, so that every part of the program also runs on a small machine. Fewer ranks leave the smallest nodes idle.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from numaserve.workers.errors import OperatorError
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
    nodes = list(topology.nodes)
    if not nodes:
        raise OperatorError("no NUMA node has both a core and memory for this process: widen its cpuset or affinity")
    front_end: tuple[int, ...] = ()
    if reserve_core:
        nodes, front_end = _reserve_core(nodes)
    wanted = len(nodes) if tp is None else tp
    cores = sum(len(node.cpus) for node in nodes)
    if wanted > cores:
        reserved = " besides the reserved one" if reserve_core else ""
        raise OperatorError(
            f"--tp {wanted} needs {wanted} cores, and this process may use {cores}{reserved}: lower --tp to at most"
            f" {cores}, or widen the cpuset"
        )
    nodes, notes = _choose_nodes(nodes, wanted)
    ranks = [
        RankCores(node.id, part[:threads_per_worker])
        for node, count in zip(nodes, _ranks_per_node(nodes, wanted), strict=True)
        for part in _cut(node.cpus, count)
    ]
    return Placement(ranks, front_end, notes)


def _reserve_core(nodes: list[Node]) -> tuple[list[Node], tuple[int, ...]]:
    """Take the first core of the first node: where interrupts go anyway by default."""
    first = nodes[0]
    if sum(len(node.cpus) for node in nodes) < 2:
        raise OperatorError("--reserve-core needs at least two cores: leave it out, or widen the cpuset")
    smaller = replace(first, cpus=first.cpus[1:])
    return [node for node in (smaller, *nodes[1:]) if node.cpus], first.cpus[:1]


def _choose_nodes(nodes: list[Node], wanted: int) -> tuple[list[Node], tuple[str, ...]]:
    """At most `wanted` nodes, those with the most cores, in order of their numbers."""
    if wanted >= len(nodes):
        return nodes, ()
    largest = sorted(nodes, key=lambda node: (-len(node.cpus), node.id))[:wanted]
    idle = [str(node.id) for node in nodes if node not in largest]
    note = f"--tp {wanted} is less than the {len(nodes)} usable NUMA nodes: node {', '.join(idle)} stays idle"
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
