"""Checks of memory: nodes, limits, huge pages, placement and swap."""

import os
import re

from numaserve.workers.planning.cgroups import cgroup_forbids_swap, read_text
from numaserve.workers.planning.doctor.findings import Seen, advice, ok, problem
from numaserve.workers.planning.doctor.host import Host
from numaserve.workers.planning.needs import GIB, format_bytes

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage"
_EVEN = 0.9  # of the largest node's memory; kernels and firmware take some of the first node's


def node_memory(host: Host) -> Seen | None:
    """Check that all nodes have about the same memory: the smallest one bounds an even division of a model."""
    sizes = {node.id: node.memory_bytes for node in host.topology.nodes}
    if not host.nodes() or not sizes or not all(sizes.values()):
        return None
    found = "; ".join(f"node {number}: {format_bytes(size)}" for number, size in sizes.items())
    small = [str(number) for number, size in sizes.items() if size < _EVEN * max(sizes.values())]
    if small:
        return advice(
            found, f"compare the memory modules of node {', '.join(small)} with the others: `dmidecode -t 17`"
        )
    return ok(found)


def memory_limit(host: Host) -> Seen | None:
    """Check that the cgroup lets the process use the free memory of its nodes."""
    free = sum(node.free_bytes for node in host.topology.nodes)
    if host.text("proc/self/cgroup") is None or not free:
        return None
    left = host.topology.cgroup_free_bytes
    if left is None:
        return ok("none")
    found = f"{format_bytes(left)} left, {format_bytes(free)} free"
    if left < free:
        return advice(found, "raise `MemoryMax=` of the unit or the memory limit of the container")
    return ok(found)


def huge_pages(host: Host) -> Seen | None:
    """Check that weights and KV cache may lie in huge pages."""
    mode = _chosen(host, "enabled")
    if mode is None:
        return None
    if mode in ("always", "madvise"):
        return ok(mode)
    return problem(mode, f"`echo madvise > /{_HUGE_PAGES}/enabled`; kernel parameter `transparent_hugepage=madvise`")


def huge_page_defragmentation(host: Host) -> Seen | None:
    """Check that the kernel makes room for huge pages when memory is fragmented."""
    mode = _chosen(host, "defrag")
    if mode is None:
        return None
    if mode in ("always", "madvise", "defer+madvise"):
        return ok(mode)
    return advice(mode, f"`echo madvise > /{_HUGE_PAGES}/defrag`")


def shared_huge_pages(host: Host) -> Seen | None:
    """Check that the messages of ranks may lie in huge pages. With one node there are none."""
    mode = _chosen(host, "shmem_enabled")
    if mode is None:
        return None
    if mode in ("advise", "within_size", "always", "force") or len(host.nodes()) < 2:
        return ok(mode)
    return advice(mode, f"`echo advise > /{_HUGE_PAGES}/shmem_enabled`")


def reserved_huge_pages(host: Host) -> Seen | None:
    """Check that no memory is set aside as pages that the server does not use."""
    reserved: dict[int, int] = {}
    readable = False
    for number, node in host.nodes().items():
        for folder in (node / "hugepages").glob("hugepages-*kB"):
            size = int(folder.name.removeprefix("hugepages-").removesuffix("kB")) << 10
            count = read_text(folder / "nr_hugepages").strip()
            readable |= count.isdigit()
            reserved[number] = reserved.get(number, 0) + size * int(count or 0)
    if not readable:
        return None
    found = "; ".join(f"node {number}: {format_bytes(size)}" for number, size in reserved.items() if size)
    if found:
        return advice(found, "sysctl `vm.nr_hugepages=0`; remove `hugepages=` from the kernel parameters")
    return ok("none")


def balancing(host: Host) -> Seen | None:
    """Check that the kernel does not move memory between nodes."""
    mode = host.text("proc/sys/kernel/numa_balancing")
    if not mode:
        return None
    if mode != "0" and len(host.topology.nodes) > 1:
        return advice(f"on ({mode})", "sysctl `kernel.numa_balancing=0`")
    return ok("off" if mode == "0" else f"on ({mode}), without effect on one node")


def swap(host: Host) -> Seen | None:
    """Check that weights cannot be written to a disk."""
    total = re.search(r"^SwapTotal:\s*(\d+) kB", read_text(host.root / "proc/meminfo"), re.MULTILINE)
    if total is None:
        return None
    nbytes = int(total[1]) << 10
    if not nbytes:
        return ok("none")
    if cgroup_forbids_swap(host.root):
        return ok(f"{format_bytes(nbytes)}, not for this cgroup")
    return advice(format_bytes(nbytes), "`swapoff -a`, or `MemorySwapMax=0` in the unit")


def locked_memory(host: Host) -> Seen | None:
    """Report the limit of locked memory. The server locks none."""
    limit = re.search(r"^Max locked memory\s+(\w+)", read_text(host.root / "proc/self/limits"), re.MULTILINE)
    if limit is None:
        return None
    return ok(format_bytes(int(limit[1])) if limit[1].isdigit() else limit[1])


def shared_memory(host: Host) -> Seen | None:
    """Report the size of /dev/shm. The server makes its shared memory with `memfd_create`, outside of it."""
    try:
        found = os.statvfs(host.root / "dev/shm")
    except OSError:
        return None
    return ok(f"{found.f_blocks * found.f_frsize / GIB:.4g} GiB")


def _chosen(host: Host, name: str) -> str | None:
    """Return the mode in brackets of a setting of transparent huge pages."""
    found = re.search(r"\[(.+?)\]", host.text(f"{_HUGE_PAGES}/{name}") or "")
    return None if found is None else found[1]
