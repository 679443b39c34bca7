"""The memory that ranks share, and the error for too little of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.placement import RankCores
from numaserve.workers.planning.topology import Topology


class TooLittleMemory(OperatorError):
    """An error about `missing` bytes of memory. `what` states the problem, and each of `remedies` would solve it."""

    def __init__(self, what: str, missing: int, remedies: Sequence[str], *, more: str = "") -> None:
        *others, last = remedies
        advice = f"{', '.join(others)} or {last}" if others else last
        super().__init__(f"{what}; {format_bytes(missing)} more is needed{more}: {advice}")
        self.what = what
        self.missing = missing
        self.remedies = remedies


@dataclass(frozen=True)
class Pool:
    """Memory that some ranks share: a node's, or the rest of a limit. `remark` explains `usable_bytes`, and each of
    `remedies` raises them."""

    place: str
    usable_bytes: int
    ranks: tuple[int, ...]
    remark: str
    remedies: tuple[str, ...]


def memory_pools(options: DeploymentOptions, topology: Topology, ranks: Sequence[RankCores]) -> list[Pool]:
    """Return the pools of `ranks`: each node, and the limits on all ranks together."""
    fraction, everyone = options.mem_fraction_static, tuple(range(len(ranks)))
    remark, raised = f" ({fraction:.0%} of the free memory)", "raise --mem-fraction-static"
    has_idle_nodes = len({each.node for each in ranks}) < len(topology.nodes)
    spread = (f"set --tp {len(topology.nodes)} to use all NUMA nodes",) if has_idle_nodes else ()
    pools = [
        Pool(
            f"on node {node.id}",
            int(node.free_bytes * fraction),
            members,
            remark,
            (f"free memory of node {node.id}", *spread, raised),
        )
        for node in topology.nodes
        if (members := tuple(rank for rank, each in enumerate(ranks) if each.node == node.id))
    ]
    if topology.cgroup_free_bytes is not None:
        usable = int(topology.cgroup_free_bytes * fraction)
        pools.append(Pool("within the cgroup's memory limit", usable, everyone, remark, ("raise the limit", raised)))
    if options.memory_bytes is not None:
        pools.append(Pool("within --memory-gib", options.memory_bytes, everyone, "", ("raise --memory-gib",)))
    return pools
