from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.workers.planning.topology import format_cpu_list, parse_cpu_list, read_topology

from tests.support.machines import (
    GIB,
    FakeNode,
    make_machine,
    mount_cgroups,
    one_node,
    three_uneven_clusters,
    two_sockets_with_hyperthreads,
    write,
)


@given(st.sets(st.integers(0, 2000)))
def test_a_cpu_list_survives_formatting_and_parsing(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus


def test_ranges_and_single_cpus_are_parsed() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpu_list("\n") == set()


def test_only_the_first_hyperthread_of_each_core_is_used(tmp_path: Path) -> None:
    topology = read_topology(two_sockets_with_hyperthreads(tmp_path), range(16))
    assert [node.cpus for node in topology.nodes] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [node.siblings_left_out for node in topology.nodes] == [(8, 9, 10, 11), (12, 13, 14, 15)]
    assert topology.cores == 8


def test_a_second_hyperthread_is_used_where_the_first_is_not_allowed(tmp_path: Path) -> None:
    topology = read_topology(two_sockets_with_hyperthreads(tmp_path), {1, 8, 9})
    assert [node.cpus for node in topology.nodes] == [(1, 8)]
    assert topology.nodes[0].siblings_left_out == (9,)


def test_uneven_sub_numa_clusters_keep_their_sizes(tmp_path: Path) -> None:
    topology = read_topology(three_uneven_clusters(tmp_path), range(128))
    assert [len(node.cpus) for node in topology.nodes] == [43, 43, 42]


def test_node_numbers_with_holes_are_kept(tmp_path: Path) -> None:
    root = make_machine(tmp_path, {0: FakeNode([0, 1]), 4: FakeNode([2, 3])})
    assert [node.id for node in read_topology(root, range(4)).nodes] == [0, 4]


def test_offline_cpus_are_left_out(tmp_path: Path) -> None:
    root = one_node(tmp_path, cores=4)
    write(root / "sys/devices/system/cpu/online", "0,2-3\n")
    assert read_topology(root, range(4)).nodes[0].cpus == (0, 2, 3)


def test_cores_of_a_node_without_memory_join_the_nearest_node(tmp_path: Path) -> None:
    nodes = {
        0: FakeNode([0, 1], distance=[10, 32, 21]),
        2: FakeNode([2, 3], distance=[32, 10, 12]),
        3: FakeNode([4, 5], total=0, free=0, distance=[32, 12, 10]),
    }
    topology = read_topology(make_machine(tmp_path, nodes), range(6))
    assert [(node.id, node.cpus) for node in topology.nodes] == [(0, (0, 1)), (2, (2, 3, 4, 5))]


def test_a_node_with_memory_only_is_left_out(tmp_path: Path) -> None:
    root = make_machine(tmp_path, {0: FakeNode([0, 1]), 1: FakeNode([])})
    assert [node.id for node in read_topology(root, range(2)).nodes] == [0]


def test_a_node_whose_memory_is_not_allowed_lends_only_its_cores(tmp_path: Path) -> None:
    root = two_sockets_with_hyperthreads(tmp_path)
    write(root / "proc/self/status", "Name:\tx\nMems_allowed_list:\t1\n")
    topology = read_topology(root, range(8))
    assert [(node.id, node.cpus) for node in topology.nodes] == [(1, tuple(range(8)))]


def test_page_cache_counts_as_free(tmp_path: Path) -> None:
    nodes = {0: FakeNode([0], free=3 * GIB, file_pages=5 * GIB), 1: FakeNode([1], free=4 * GIB)}
    topology = read_topology(make_machine(tmp_path, nodes), range(2))
    assert [node.free_bytes for node in topology.nodes] == [8 * GIB, 4 * GIB]
    assert topology.nodes[0].memory_bytes == 64 * GIB


def test_a_kernel_without_numa_is_one_node(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n")
    (node,) = read_topology(tmp_path, {0, 1}).nodes
    assert (node.id, node.cpus, node.memory_bytes, node.free_bytes) == (0, (0, 1), 2 * GIB, GIB)


@pytest.mark.parametrize(
    ("line", "mounts", "folder", "names"),
    [
        (
            "0::/a/b",
            ["/ /sys/fs/cgroup cgroup2 x"],
            "sys/fs/cgroup/a",
            ("cpuset.cpus.effective", "memory.max", "memory.current", "inactive_file"),
        ),
        (
            "4:memory:/a/b\n3:cpuset:/a/b",
            [f"/ /sys/fs/cgroup/{name} cgroup {name}" for name in ("memory", "cpuset")],
            "sys/fs/cgroup/{}/a",
            ("cpuset.effective_cpus", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
    ids=["v2", "v1"],
)
def test_the_cgroup_limits_cores_and_memory(
    tmp_path: Path, line: str, mounts: list[str], folder: str, names: tuple[str, str, str, str]
) -> None:
    root = one_node(tmp_path, cores=8)
    mount_cgroups(root, line, *mounts)
    cpus, limit, usage, cache = names
    write(root / folder.format("cpuset") / cpus, "2-5\n")
    memory = root / folder.format("memory")
    write(memory / limit, f"{8 * GIB}\n")
    write(memory / usage, f"{3 * GIB}\n")
    write(memory / "memory.stat", f"anon 1\n{cache} {GIB}\n")
    topology = read_topology(root, range(8))
    assert topology.nodes[0].cpus == (2, 3, 4, 5)
    assert topology.cgroup_free_bytes == 6 * GIB


def test_no_cgroup_limit_is_none(tmp_path: Path) -> None:
    root = one_node(tmp_path)
    mount_cgroups(
        root, "4:memory:/\n0::/", "/ /sys/fs/cgroup/memory cgroup memory", "/ /sys/fs/cgroup/unified cgroup2 x"
    )
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root / "sys/fs/cgroup/unified/memory.max", "max\n")
    assert read_topology(root, {0}).cgroup_free_bytes is None


def test_huge_page_settings_are_read(tmp_path: Path) -> None:
    root = one_node(tmp_path)
    write(root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "7\n")
    assert read_topology(root, {0}).huge_pages.transparent == "madvise"
    assert read_topology(root, {0}).huge_pages.reserved == ((2 << 20, 7),)


def test_this_machine_has_at_least_one_usable_core() -> None:
    topology = read_topology()
    assert topology.cores >= 1
    assert all(node.free_bytes <= node.memory_bytes for node in topology.nodes)
