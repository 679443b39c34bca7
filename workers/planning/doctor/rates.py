"""Measured rates of a host, and the host file that `numaserve plan --host FILE` reads."""

from dataclasses import dataclass
from statistics import mean

import yaml
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.planning.roofline.machine import Machine, machine_of
from numaserve.workers.planning.topology import Topology

_DIGITS = 4
_LINE = 118  # columns of a comment


@dataclass(frozen=True)
class HostRates:
    """Rates of the nodes of a host, measured at once. Lists have an entry for each node."""

    nodes: list[int]
    ceilings: list[Ceilings]
    core_read_gb_s: list[float]  # of one core, while the others of its node are idle
    remote_gb_s: list[list[float | None]]  # [reading node][node of the memory]; None for itself, and where unbound
    barrier_us: list[float]  # of all threads of the node
    meeting_us: float | None  # of one thread of each node, or of two of the only one; None with a single core
    same_node_ns: list[float]  # a cache line from core to core, for each sampled pair
    other_node_ns: list[float]
    refusal: str  # the reason why memory cannot be bound to nodes; empty if it can

    @property
    def read_gb_s(self) -> list[float]:
        """Each node's own memory, read by all its cores."""
        return [each.read_rate / 1e9 for each in self.ceilings]

    def core_gflop_s(self, format: str) -> list[float]:
        """Return the rate of one core of each node, while all cores compute."""
        return [each.flops_s[format] / each.threads / 1e9 for each in self.ceilings]

    def link_gb_s(self, node: int) -> float | None:
        """Return the mean rate at which a node, by its index, reads from other nodes. None means that none is known."""
        known = [rate for rate in self.remote_gb_s[node] if rate is not None]
        return mean(known) if known else None


def machine_from(rates: HostRates, topology: Topology, name: str) -> Machine:
    """Return the host of these rates: the slowest node's, because ranks wait for each other.

    Where nodes could not read from others, they are assumed to do so as fast as from their own memory.
    """
    flops = {format: min(rates.core_gflop_s(format)) * 1e9 for format in rates.ceilings[0].flops_s}
    slowest = Ceilings(rates.ceilings[0].isa, 1, min(rates.read_gb_s) * 1e9, flops)
    machine = machine_of(slowest, topology, max(rates.barrier_us))
    links = [link for index in range(len(rates.nodes)) if (link := rates.link_gb_s(index)) is not None]
    figures: dict[str, object] = {"name": name, "core_read_gb_s": min(rates.core_read_gb_s)}
    if links:
        figures["link_gb_s"] = min(links)
    if rates.meeting_us is not None:
        figures["meeting_us"] = rates.meeting_us
    return machine.model_copy(update=figures)


def host_file(machine: Machine, kernels: str) -> str:
    """Return the text of a host file, with figures of four digits."""
    fields = {key: _rounded(value) for key, value in machine.model_dump(by_alias=True, exclude_none=True).items()}
    comment = f"# Measured by numaserve doctor with the kernels for {kernels}.\n"
    return comment + yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, width=_LINE, allow_unicode=True)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return {key: _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value
