"""A host of two sockets and four nodes, as folders, on which every check of `numaserve doctor` is satisfied."""

from pathlib import Path

from tests.support.machines import FakeNode, make_machine, mount_cgroups, write

CORES = 8  # of two sockets
AMX = "fpu avx512f avx512_bf16 amx_bf16 amx_tile amx_int8"
CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
HUGE = "sys/kernel/mm/transparent_hugepage"


def good_host(root: Path) -> Path:
    """Write the files below `root`: 2 x 4 cores with two hyperthreads each, two nodes a socket."""
    nodes = {node: FakeNode([*_first(node), *(cpu + CORES for cpu in _first(node))]) for node in range(4)}
    make_machine(root, nodes, {cpu: cpu + CORES for cpu in range(CORES)})
    for cpu in range(2 * CORES):
        folder = root / f"{CPUS}/cpu{cpu}"
        write(folder / "topology/physical_package_id", f"{cpu % CORES // 4}\n")
        write(folder / "cpufreq/scaling_governor", "performance\n")
        write(folder / "cpufreq/energy_performance_preference", "performance\n")
    for node in nodes:
        write(root / f"{NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
    write(root / f"{CPUS}/isolated", "\n")
    write_processor(root, AMX)
    mount_cgroups(root, "0::/serve", "/ /sys/fs/cgroup cgroup2 x")
    write(root / "proc/sys/kernel/osrelease", "6.8.0-31-generic\n")
    write(root / "proc/sys/kernel/numa_balancing", "0\n")
    write(root / "proc/loadavg", "0.21 0.30 0.12 1/200 4321\n")
    write(root / "proc/self/limits", "Max locked memory         unlimited            unlimited            bytes     \n")
    with (root / "proc/meminfo").open("a") as meminfo:
        meminfo.write("SwapTotal:             0 kB\n")
    write(root / f"{HUGE}/defrag", "always defer defer+madvise [madvise] never\n")
    write(root / f"{HUGE}/shmem_enabled", "always within_size [advise] never deny force\n")
    (root / "dev/shm").mkdir(parents=True)
    return root


def write_processor(root: Path, flags: str, name: str = "Intel(R) Xeon(R) 6980P", model: int = 0xAD) -> None:
    """Write /proc/cpuinfo with two processors."""
    fields = {"vendor_id": "GenuineIntel", "cpu family": 6, "model": model, "model name": name, "flags": flags}
    first = "".join(f"{key}\t: {value}\n" for key, value in fields.items())
    write(root / "proc/cpuinfo", f"processor\t: 0\n{first}\nprocessor\t: 1\n{first}\n")


def _first(node: int) -> range:
    return range(2 * node, 2 * node + 2)
