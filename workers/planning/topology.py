"""Processors and memory that this process may use, read from procfs, sysfs and cgroups.

The result is the resources of this process, not of the machine: the affinity mask, and the cgroup's cpuset, CPU quota
and memory limit. Every reader takes the root of the file system, so that tests can describe other machines as folders.
"""

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from numaserve.workers.planning.cgroups import cgroup_cpu_quota, cgroup_cpuset, cgroup_free_bytes, read_text

ROOT = Path("/")


@dataclass(frozen=True)
class Node:
    """A NUMA node as this process may use it. Memory is in bytes."""

    id: int
    cpus: tuple[int, ...]  # one per physical core: its lowest allowed hyperthread
    siblings_left_out: tuple[int, ...]  # allowed, but the second hyperthread of a core in `cpus`
    memory_bytes: int
    free_bytes: int  # free, or page cache that the kernel gives back


@dataclass(frozen=True)
class HugePages:
    """The machine's huge page settings."""

    transparent: str  # "always", "madvise", "never" or "unavailable"
    reserved: tuple[tuple[int, int], ...]  # (page size in bytes, number of pages), over all nodes


@dataclass(frozen=True)
class Topology:
    """Every node with at least one processor and memory for this process, by rising id."""

    nodes: tuple[Node, ...]
    cgroup_free_bytes: int | None  # None without a cgroup memory limit
    huge_pages: HugePages
    memlock_bytes: int | None  # None is unlimited
    cpu_quota: float | None = None  # processors' worth of time, of all processors together; None without a limit

    @property
    def cores(self) -> int:
        """Physical cores that the process may use."""
        return sum(len(node.cpus) for node in self.nodes)


def read_topology(root: Path = ROOT, affinity: Iterable[int] | None = None) -> Topology:
    """Read what this process may use. `affinity` replaces the process's own mask."""
    allowed = set(os.sched_getaffinity(0) if affinity is None else affinity)
    # The kernel keeps the mask inside the cpuset and the online processors; a sandbox that fakes one of them does not.
    for limit in (cgroup_cpuset(root, "cpus"), read_text(root / "sys/devices/system/cpu/online")):
        if cpus := parse_cpu_list(limit):
            allowed &= cpus
    return Topology(
        nodes=_read_nodes(root, allowed),
        cgroup_free_bytes=cgroup_free_bytes(root),
        huge_pages=_read_huge_pages(root),
        memlock_bytes=_memlock_bytes(),
        cpu_quota=cgroup_cpu_quota(root),
    )


def parse_cpu_list(text: str) -> set[int]:
    """Parse the kernel's list format, such as ``0-3,8,10-11``. An empty text is the empty set."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return the inverse of `parse_cpu_list`: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _read_nodes(root: Path, allowed: set[int]) -> tuple[Node, ...]:
    machine = _read_meminfo(root / "proc/meminfo")
    folder = root / "sys/devices/system/node"
    cpus_of: dict[int, set[int]] = {}
    memory_of: dict[int, dict[str, int]] = {}
    allowed_nodes = _allowed_memory_nodes(root)
    for path in folder.glob("node[0-9]*"):
        number = int(path.name.removeprefix("node"))
        cpus_of[number] = parse_cpu_list(read_text(path / "cpulist")) & allowed
        memory = _read_meminfo(path / "meminfo")
        if memory.get("MemTotal") and (allowed_nodes is None or number in allowed_nodes):
            memory_of[number] = memory
    if not memory_of:  # a kernel without NUMA, or a sandbox that hides it
        cpus_of, memory_of = {0: allowed}, {0: machine}
    elif len(memory_of) == 1:
        # The node's own figures omit memory that a hypervisor plugged in later; the machine's figures include it.
        only = next(iter(memory_of))
        memory_of[only] = max(memory_of[only], machine, key=_available)
    for orphan in sorted(cpus_of.keys() - memory_of.keys()):
        # A node without memory of its own: its cores use the nearest node that has memory.
        nearest = _nearest(folder, orphan, sorted(memory_of))
        cpus_of[nearest] = cpus_of.get(nearest, set()) | cpus_of[orphan]
    nodes = []
    for number in sorted(memory_of):
        cpus, siblings = _split_hyperthreads(root, cpus_of.get(number, set()))
        if cpus:
            memory = memory_of[number]
            nodes.append(Node(number, cpus, siblings, memory.get("MemTotal", 0), _available(memory)))
    return tuple(nodes)


def _nearest(folder: Path, node: int, candidates: list[int]) -> int:
    """Return the candidate with the smallest ACPI distance. The distance file lists the online nodes in order."""
    distances = [int(word) for word in read_text(folder / f"node{node}/distance").split()]
    online = sorted(parse_cpu_list(read_text(folder / "online")))
    by_node = dict(zip(online, distances, strict=False))
    return min(candidates, key=lambda candidate: (by_node.get(candidate, 255), candidate))


def _split_hyperthreads(root: Path, cpus: set[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lowest allowed hyperthread of each core, and the other hyperthreads."""
    first: list[int] = []
    rest: list[int] = []
    seen: set[int] = set()
    for cpu in sorted(cpus):
        (rest if cpu in seen else first).append(cpu)
        seen |= parse_cpu_list(read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        seen.add(cpu)
    return tuple(first), tuple(rest)


def _read_meminfo(path: Path) -> dict[str, int]:
    """Parse /proc/meminfo or a node's meminfo into bytes."""
    figures: dict[str, int] = {}
    for line in read_text(path).splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words and words[-1] == "kB":
            figures[key.split()[-1]] = int(words[0]) * 1024
    return figures


def _available(memory: dict[str, int]) -> int:
    """Return free memory and page cache: a model file that was just downloaded must not count as memory in use."""
    if "MemAvailable" in memory:
        return memory["MemAvailable"]
    return sum(memory.get(key, 0) for key in ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable"))


def _allowed_memory_nodes(root: Path) -> set[int] | None:
    """The nodes whose memory the process may allocate, or None when nothing restricts them."""
    for line in read_text(root / "proc/self/status").splitlines():
        if line.startswith("Mems_allowed_list:"):
            return parse_cpu_list(line.partition(":")[2]) or None
    return parse_cpu_list(cgroup_cpuset(root, "mems")) or None


def _read_huge_pages(root: Path) -> HugePages:
    mode = "unavailable"
    for word in read_text(root / "sys/kernel/mm/transparent_hugepage/enabled").split():
        if word.startswith("["):
            mode = word.strip("[]")
    reserved = []
    for path in (root / "sys/kernel/mm/hugepages").glob("hugepages-*kB"):
        size = int(path.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        reserved.append((size, int(read_text(path / "nr_hugepages").strip() or 0)))
    return HugePages(mode, tuple(sorted(reserved)))


def _memlock_bytes() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit
