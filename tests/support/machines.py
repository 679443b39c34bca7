"""Other machines as folders: procfs, sysfs and cgroup trees that `read_topology` reads instead of the real ones."""

from dataclasses import dataclass, field
from pathlib import Path

from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.topology import HugePages, Node, Topology, format_cpu_list

GIB = 1 << 30
OPTIONS = DeploymentOptions(
    model="/models/m", max_running_requests=64, max_step_tokens=512, mem_fraction_static=0.85, step_deadline_s=60.0
)


@dataclass
class FakeNode:
    cpus: list[int]
    total: int = 64 * GIB
    free: int = 48 * GIB
    file_pages: int = 0
    distance: list[int] = field(default_factory=list)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make_machine(root: Path, nodes: dict[int, FakeNode], siblings: dict[int, int] | None = None) -> Path:
    """`siblings` maps a processor to the other hyperthread of its core; cores without an entry have one thread."""
    both = {**(siblings or {}), **{second: first for first, second in (siblings or {}).items()}}
    folder = root / "sys/devices/system/node"
    write(folder / "online", format_cpu_list(nodes))
    for number, node in nodes.items():
        write(folder / f"node{number}/cpulist", format_cpu_list(node.cpus))
        write(folder / f"node{number}/distance", " ".join(str(d) for d in node.distance))
        write(
            folder / f"node{number}/meminfo",
            f"Node {number} MemTotal: {node.total // 1024} kB\nNode {number} MemFree: {node.free // 1024} kB\n"
            f"Node {number} Inactive(file): {node.file_pages // 1024} kB\nNode {number} HugePages_Total: 0\n",
        )
        for cpu in node.cpus:
            threads = {cpu, both.get(cpu, cpu)}
            write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", format_cpu_list(threads))
    write(root / "sys/devices/system/cpu/online", format_cpu_list(cpu for node in nodes.values() for cpu in node.cpus))
    write(
        root / "proc/meminfo",
        f"MemTotal: {sum(node.total for node in nodes.values()) // 1024} kB\n"
        f"MemAvailable: {sum(node.free + node.file_pages for node in nodes.values()) // 1024} kB\n",
    )
    write(root / "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    return root


def mount_cgroups(root: Path, cgroups: str, *mounts: str) -> None:
    """What a process reads of its cgroups, and for each mount ``TOP POINT KIND OPTIONS``: the cgroup that it shows,
    where, ``cgroup`` or ``cgroup2``, and for v1 its controllers."""
    write(root / "proc/self/cgroup", cgroups + "\n")
    lines = [f"{30 + number} 25 0:{number} {top} {point} rw,nosuid shared:9 - {kind} {kind} rw,{options}\n"
             for number, (top, point, kind, options) in enumerate(mount.split() for mount in mounts)]  # fmt: skip
    write(root / "proc/self/mountinfo", "25 1 8:1 / / rw - ext4 /dev/vda rw\n" + "".join(lines))


def two_sockets_with_hyperthreads(root: Path) -> Path:
    """2 x 4 cores numbered as Linux does on a Xeon: first threads 0-7, then their siblings 8-15."""
    nodes = {0: FakeNode([0, 1, 2, 3, 8, 9, 10, 11]), 1: FakeNode([4, 5, 6, 7, 12, 13, 14, 15])}
    return make_machine(root, nodes, {cpu: cpu + 8 for cpu in range(8)})


def three_uneven_clusters(root: Path) -> Path:
    """One socket of 128 cores in sub-NUMA clusters of 43, 43 and 42."""
    nodes = {0: FakeNode([*range(43)]), 1: FakeNode([*range(43, 86)]), 2: FakeNode([*range(86, 128)])}
    return make_machine(root, nodes)


def one_node(root: Path, cores: int = 2, free: int = 48 * GIB) -> Path:
    return make_machine(root, {0: FakeNode([*range(cores)], free=free)})


def machine(
    *sizes: int, free_gib: float = 48, cgroup_gib: float | None = None, cpu_quota: float | None = None
) -> Topology:
    nodes = []
    for index, size in enumerate(sizes):
        start = sum(sizes[:index])
        nodes.append(Node(index, tuple(range(start, start + size)), (), 64 * GIB, int(free_gib * GIB)))
    limit = None if cgroup_gib is None else int(cgroup_gib * GIB)
    return Topology(tuple(nodes), limit, HugePages("madvise", ()), None, cpu_quota)
