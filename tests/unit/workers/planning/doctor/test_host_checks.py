"""Every check of `numaserve doctor`: on a good host, on a host with something to change, and without its files."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from numaserve.workers.planning.doctor.checks import CHECKS, check_host
from numaserve.workers.planning.doctor.findings import Finding, Status
from numaserve.workers.planning.doctor.host import read_host, read_processor
from numaserve.workers.planning.topology import parse_cpu_list

from tests.support.good_host import CORES, CPUS, HUGE, NODES, good_host, write_processor
from tests.support.machines import GIB, FakeNode, make_machine, mount_cgroups, one_node, write

ALL = range(2 * CORES)
AVX512 = "fpu avx512f avx512_bf16"
OLD_PORTABLE = "fpu avx2"


class Bad(NamedTuple):
    """A host with something to change."""

    check: str
    spoil: Callable[[Path], object]
    found: str  # a part of it
    change: str  # a part of it
    status: Status = "advice"
    affinity: str = "0-15"
    kernels: str = "amx"
    unbuilt: str = ""


def node_without_memory(root: Path) -> None:
    write(root / f"{NODES}/node3/meminfo", "Node 3 MemTotal: 0 kB\n")


def half_of_a_nodes_memory(root: Path) -> None:
    write(root / f"{NODES}/node2/meminfo", f"Node 2 MemTotal: {32 * GIB // 1024} kB\nNode 2 MemFree: 1 kB\n")


def one_node_a_socket(root: Path) -> None:
    shutil.rmtree(root / "sys/devices/system")
    make_machine(root, {socket: FakeNode([*range(32 * socket, 32 * socket + 32)]) for socket in (0, 1)})
    for cpu in range(64):
        write(root / f"{CPUS}/cpu{cpu}/topology/physical_package_id", str(cpu // 32))


def reserved_pages(root: Path) -> None:
    write(root / f"{NODES}/node1/hugepages/hugepages-1048576kB/nr_hugepages", "8\n")


def setting(path: str, text: str) -> Callable[[Path], None]:
    return lambda root: write(root / path, text)


BAD = {
    "a node without memory": Bad(
        "NUMA nodes", node_without_memory, "no usable memory on node 3", "fit memory modules", "problem"
    ),
    "a large Xeon of one node": Bad("nodes per socket", one_node_a_socket, "2 on 2 sockets", "(SNC)", affinity="0-63"),
    "uneven memory": Bad("memory per node", half_of_a_nodes_memory, "node 2: 32", "modules of node 2"),
    "hyperthreads of others": Bad("hyperthreads", str, "cores 0-7", "whole cores", affinity="0-7"),
    "a cpuset": Bad("CPUs allowed", str, "12 of 16; without 6-7,14-15", "AllowedCPUs=", affinity="0-5,8-13"),
    "a quota below the cores": Bad(
        "CPU quota", setting("sys/fs/cgroup/serve/cpu.max", "600000 100000"), "6 for 8", "CPUQuota=", "problem"
    ),
    "a memory limit": Bad(
        "memory limit", setting("sys/fs/cgroup/serve/memory.max", f"{8 * GIB}"), "8.0 GiB left, 192", "MemoryMax="
    ),
    "isolated cores": Bad("isolated cores", setting(f"{CPUS}/isolated", "2-5\n"), "2-5", "isolcpus="),
    "a set that is not built": Bad(
        "instruction set", str, "avx512; amx is not built", "make install", "problem", kernels="avx512", unbuilt="amx"
    ),
    "AMX without permission": Bad("instruction set", str, "with AMX", "arch_prctl", "problem", kernels="avx512"),
    "AMX that a hypervisor hides": Bad(
        "instruction set", lambda root: write_processor(root, AVX512), "AMX is hidden", "-cpu host", "problem",
        kernels="avx512",
    ),
    "AVX2 alone": Bad(
        "instruction set", lambda root: write_processor(root, OLD_PORTABLE, model=0x55), "AVX2", "AVX-512",
        kernels="portable",
    ),
    "a kernel without tiles": Bad(
        "kernel", setting("proc/sys/kernel/osrelease", "5.15.0-91-generic"), "5.15.0", "5.16", "problem"
    ),
    "a kernel that does not populate": Bad(
        "kernel",
        lambda root: (write_processor(root, AVX512), write(root / "proc/sys/kernel/osrelease", "5.10.0-28-amd64")),
        "5.10.0", "5.14",
    ),
    "one core that saves power": Bad(
        "governor", setting(f"{CPUS}/cpu7/cpufreq/scaling_governor", "powersave\n"),
        "performance, powersave", "cpupower",
    ),
    "a preference for power": Bad(
        "energy preference", setting(f"{CPUS}/cpu0/cpufreq/energy_performance_preference", "balance_power\n"),
        "balance_power", "--epp performance",
    ),
    "other programs": Bad("load", setting("proc/loadavg", "7.50 2.00 1.00 9/200 4\n"), "7.50", "stop other programs"),
    "no huge pages": Bad("huge pages", setting(f"{HUGE}/enabled", "always madvise [never]\n"), "never", "madvise",
                         "problem"),
    "huge pages only if free": Bad(
        "huge page defrag", setting(f"{HUGE}/defrag", "always defer defer+madvise madvise [never]\n"), "never", "defrag"
    ),
    "no huge pages for messages": Bad(
        "huge pages of shared memory",
        setting(f"{HUGE}/shmem_enabled", "always within_size advise [never] deny force\n"),
        "never", "advise",
    ),
    "pages set aside": Bad("reserved huge pages", reserved_pages, "node 1: 8.0 GiB", "vm.nr_hugepages=0"),
    "balancing": Bad("NUMA balancing", setting("proc/sys/kernel/numa_balancing", "1\n"), "on", "numa_balancing=0"),
    "swap": Bad(
        "swap", setting("proc/meminfo", "MemTotal: 1048576 kB\nSwapTotal: 2097152 kB\n"), "2.0 GiB", "MemorySwapMax=0"
    ),
}  # fmt: skip
# Checks that report a fact, whatever it is.
FACTS = {"locked memory limit", "shared memory size"}


def row(root: Path, name: str, affinity: str = "0-15", kernels: str | None = "amx", unbuilt: str = "") -> Finding:
    host = read_host(root, parse_cpu_list(affinity), kernels=kernels, unbuilt=unbuilt)
    return {each.check: each for each in check_host(host)}[name]


def test_every_check_has_a_host_that_it_complains_about() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert {each.check for each in BAD.values()} | FACTS == set(names)


def test_a_good_host_satisfies_every_check(tmp_path: Path) -> None:
    findings = check_host(read_host(good_host(tmp_path), ALL, kernels="amx"))
    assert {each.check: (each.status, each.change) for each in findings} == {check.name: ("ok", "") for check in CHECKS}
    assert all(each.found and each.wanted for each in findings)


@pytest.mark.parametrize("case", BAD)
def test_what_is_to_be_changed_is_found(case: str, tmp_path: Path) -> None:
    root, bad = good_host(tmp_path), BAD[case]
    bad.spoil(root)
    found = row(root, bad.check, bad.affinity, bad.kernels, bad.unbuilt)
    assert found.status == bad.status
    assert bad.found in found.found and bad.change in found.change


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_a_setting_that_cannot_be_read_is_unknown(check: str, tmp_path: Path) -> None:
    found = row(tmp_path, check, kernels=None)
    assert (found.status, found.found, found.change) == ("unknown", "not readable", "")


def test_facts_are_reported_whatever_they_are(tmp_path: Path) -> None:
    root = good_host(tmp_path)
    write(root / "proc/self/limits", "Max locked memory         8388608              8388608              bytes     \n")
    assert row(root, "locked memory limit").found == "8 MiB"
    assert row(root, "shared memory size").found.endswith(" GiB")


def test_one_node_needs_no_huge_pages_of_shared_memory(tmp_path: Path) -> None:
    root = one_node(tmp_path, cores=8)
    write(root / f"{HUGE}/shmem_enabled", "always within_size advise [never] deny force\n")
    assert row(root, "huge pages of shared memory").status == "ok"


def test_one_node_needs_no_clusters_on_a_small_xeon_and_no_balancing_off(tmp_path: Path) -> None:
    root = one_node(tmp_path, cores=8)
    for cpu in range(8):
        write(root / f"{CPUS}/cpu{cpu}/topology/physical_package_id", "0")
    write_processor(root, AVX512)
    write(root / "proc/sys/kernel/numa_balancing", "1")
    for check in ("nodes per socket", "NUMA balancing"):
        assert row(root, check, "0-7").status == "ok"


def test_a_cpuset_of_one_node_says_nothing_about_the_nodes_of_a_socket(tmp_path: Path) -> None:
    root = good_host(tmp_path)
    assert row(root, "nodes per socket", "0-1,8-9").found == "4 on 2 sockets"


def test_swap_that_the_cgroup_forbids_is_not_used(tmp_path: Path) -> None:
    root = good_host(tmp_path)
    write(root / "proc/meminfo", "SwapTotal: 2097152 kB\n")
    mount_cgroups(root, "0::/serve", "/ /sys/fs/cgroup cgroup2 x")
    write(root / "sys/fs/cgroup/serve/memory.swap.max", "max\n")
    assert row(root, "swap").status == "advice"
    write(root / "sys/fs/cgroup/serve/memory.swap.max", "0\n")
    assert row(root, "swap").status == "ok"


def test_an_avx512_processor_is_what_its_kernels_are_for(tmp_path: Path) -> None:
    root = good_host(tmp_path)
    write_processor(root, AVX512, model=0x6A)  # Ice Lake
    assert row(root, "instruction set", kernels="avx512").status == "ok"
    assert read_processor(root).name == "Intel(R) Xeon(R) 6980P"


def test_kernels_that_cannot_run_are_a_problem(tmp_path: Path) -> None:
    host = read_host(good_host(tmp_path), ALL, refusal="numaserve needs a processor with AVX2")
    (found,) = (each for each in check_host(host) if each.check == "instruction set")
    assert (found.status, found.found) == ("problem", "numaserve needs a processor with AVX2")
