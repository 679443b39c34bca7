"""The checks of settings, each declared once. They read files and change nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from numaserve.workers.planning.doctor import memory, processors
from numaserve.workers.planning.doctor.findings import Finding, Seen, finding
from numaserve.workers.planning.doctor.host import Host


@dataclass(frozen=True)
class Check:
    """A check of one setting."""

    name: str
    wanted: str
    look: Callable[[Host], Seen | None]  # None if the setting cannot be read


CHECKS = (
    Check("NUMA nodes", "cores and memory on each", processors.numa_nodes),
    Check("nodes per socket", "several, on a Xeon of 32 cores or more", processors.clusters),
    Check("memory per node", "the same on each", memory.node_memory),
    Check("hyperthreads", "off, or whole cores", processors.hyperthreads),
    Check("CPUs allowed", "all that are online", processors.allowed_cpus),
    Check("CPU quota", "none", processors.cpu_quota),
    Check("memory limit", "none, or more than is free", memory.memory_limit),
    Check("isolated cores", "none", processors.isolated),
    Check("instruction set", "amx, or avx512 without AMX", processors.instruction_set),
    Check("kernel", "5.14 or later; 5.16 with AMX", processors.kernel),
    Check("governor", "performance", processors.governor),
    Check("energy preference", "performance", processors.energy_preference),
    Check("load", "less than a tenth of the cores", processors.load),
    Check("huge pages", "madvise or always", memory.huge_pages),
    Check("huge page defrag", "madvise, defer+madvise or always", memory.huge_page_defragmentation),
    Check("huge pages of shared memory", "advise, within_size or always", memory.shared_huge_pages),
    Check("reserved huge pages", "none", memory.reserved_huge_pages),
    Check("NUMA balancing", "off with several nodes", memory.balancing),
    Check("swap", "none", memory.swap),
    Check("locked memory limit", "any", memory.locked_memory),
    Check("shared memory size", "any", memory.shared_memory),
)


def check_host(host: Host) -> list[Finding]:
    """Return the row of each check."""
    return [finding(check.name, check.wanted, check.look(host)) for check in CHECKS]
