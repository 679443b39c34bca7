from pathlib import Path

import pytest
from numaserve.workers.planning.cgroups import cgroup_cpu_quota, cgroup_cpuset
from numaserve.workers.planning.topology import read_topology

from tests.support.machines import mount_cgroups, one_node, write

V2 = "/ /sys/fs/cgroup cgroup2 nsdelegate"
HYBRID = ("/ /sys/fs/cgroup/cpu,cpuacct cgroup cpu,cpuacct", "/ /sys/fs/cgroup/unified cgroup2 nsdelegate")


def quota(root: Path, folder: str, text: str) -> None:
    """Write a quota, as v2 does, or as v1 with two numbers."""
    *v1, period = text.split()
    if "cpu" in folder:
        write(root / f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us", f"{v1[0]}\n")
        write(root / f"sys/fs/cgroup/{folder}/cpu.cfs_period_us", f"{period}\n")
    else:
        write(root / f"sys/fs/cgroup/{folder}/cpu.max", f"{text}\n")


@pytest.mark.parametrize("folders", [("a", "a/b/c"), ("a/b/c", "a"), ("a/b", "a/b/c")])
def test_the_least_quota_of_all_ancestors_counts(tmp_path: Path, folders: tuple[str, str]) -> None:
    mount_cgroups(tmp_path, "0::/a/b/c", V2)
    quota(tmp_path, folders[0], "250000 100000")
    quota(tmp_path, folders[1], "40000 10000")
    assert cgroup_cpu_quota(tmp_path) == 2.5


def test_quotas_of_other_cgroups_do_not_count(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "0::/a/b", V2)
    quota(tmp_path, "a", "max 100000")
    quota(tmp_path, "a/c", "100000 100000")
    quota(tmp_path, "a/b/child", "100000 100000")
    assert cgroup_cpu_quota(tmp_path) is None


def test_a_process_at_the_top_of_its_namespace_finds_the_quota_there(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "0::/", V2)
    quota(tmp_path, ".", "800000 100000")
    assert cgroup_cpu_quota(tmp_path) == 8


def test_a_mount_from_outside_the_namespace_shows_an_ancestor(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "0::/", "/../.. /sys/fs/cgroup cgroup2 x")
    quota(tmp_path, ".", "800000 100000")
    assert cgroup_cpu_quota(tmp_path) == 8


@pytest.mark.parametrize("path", ["/../neighbour", "/../../x"])
def test_a_process_that_the_mount_does_not_show_has_no_known_quota(tmp_path: Path, path: str) -> None:
    mount_cgroups(tmp_path, f"0::{path}", V2)
    quota(tmp_path, ".", "100000 100000")
    quota(tmp_path, "neighbour", "100000 100000")
    assert cgroup_cpu_quota(tmp_path) is None


def test_v1_says_minus_one_where_there_is_no_quota(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "4:cpu,cpuacct:/a/b\n0::/a/b", *HYBRID)
    quota(tmp_path, "cpu,cpuacct", "-1 100000")
    quota(tmp_path, "cpu,cpuacct/a/b", "-1 100000")
    assert cgroup_cpu_quota(tmp_path) is None
    quota(tmp_path, "cpu,cpuacct/a", "150000 100000")
    assert cgroup_cpu_quota(tmp_path) == 1.5


def test_a_mount_of_v1_may_begin_at_the_container(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "4:cpu:/docker/abc/inner", "/docker/abc /sys/fs/cgroup/cpu cgroup cpu")
    quota(tmp_path, "cpu", "300000 100000")
    quota(tmp_path, "cpu/inner", "200000 100000")
    quota(tmp_path, "cpu/docker/abc", "100000 100000")  # somebody else's, of the same name
    assert cgroup_cpu_quota(tmp_path) == 2


def test_another_containers_mount_says_nothing(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "4:cpu:/docker/abc", "/docker/def /sys/fs/cgroup/cpu cgroup cpu")
    quota(tmp_path, "cpu", "300000 100000")
    assert cgroup_cpu_quota(tmp_path) is None


def test_of_two_mounts_the_one_with_more_ancestors_is_read(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "4:cpu:/a/b", "/a/b /inner cgroup cpu", "/ /sys/fs/cgroup/cpu cgroup cpu")
    quota(tmp_path, "cpu/a", "300000 100000")
    assert cgroup_cpu_quota(tmp_path) == 3


def test_blanks_of_mount_points_are_octal(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "0::/", "/ /sys/fs/cgroup/my\\040own cgroup2 x")
    quota(tmp_path, "my own", "100000 100000")
    assert cgroup_cpu_quota(tmp_path) == 1


def test_each_controller_is_read_where_it_is_mounted(tmp_path: Path) -> None:
    mount_cgroups(tmp_path, "4:cpu,cpuacct:/a\n3:cpuset:/b\n0::/c", *HYBRID, "/ /sys/fs/cgroup/sets cgroup cpuset")
    quota(tmp_path, "cpu,cpuacct/a", "300000 100000")
    write(tmp_path / "sys/fs/cgroup/sets/b/cpuset.cpus", "2-4\n")
    assert (cgroup_cpu_quota(tmp_path), cgroup_cpuset(tmp_path, "cpus")) == (3, "2-4")


@pytest.mark.parametrize("text", ["", "max", "100000", "abc 100000", "100000 100000 100000"])
def test_what_is_no_quota_is_none(tmp_path: Path, text: str) -> None:
    mount_cgroups(tmp_path, "0::/", V2)
    write(tmp_path / "sys/fs/cgroup/cpu.max", text)
    assert cgroup_cpu_quota(tmp_path) is None


def test_a_process_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert read_topology(one_node(tmp_path), {0, 1}).cpu_quota is None


def test_the_topology_has_the_quota_and_all_cores(tmp_path: Path) -> None:
    root = one_node(tmp_path, cores=8)
    mount_cgroups(root, "0::/a", V2)
    quota(root, "a", "350000 100000")
    topology = read_topology(root, range(8))
    assert (topology.cpu_quota, topology.cores) == (3.5, 8)
