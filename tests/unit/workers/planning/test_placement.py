from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.placement import place_ranks
from numaserve.workers.planning.topology import read_topology

from tests.support.machines import machine, one_node, three_uneven_clusters, two_sockets_with_hyperthreads


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 64), st.booleans())
def test_every_core_has_at_most_one_owner_and_every_rank_a_core(sizes: list[int], tp: int, reserve: bool) -> None:
    topology = machine(*sizes)
    if tp > sum(sizes) - reserve or (reserve and sum(sizes) < 2):
        with pytest.raises(OperatorError):
            place_ranks(topology, tp, None, reserve)
        return
    placement = place_ranks(topology, tp, None, reserve)
    owned = [cpu for rank in placement.ranks for cpu in rank.cpus] + list(placement.front_end_cpus)
    assert len(owned) == len(set(owned))
    assert len(placement.ranks) == tp
    by_node = {node.id: set(node.cpus) for node in topology.nodes}
    assert all(rank.cpus and set(rank.cpus) <= by_node[rank.node] for rank in placement.ranks)


def test_the_default_is_one_rank_for_each_node(tmp_path: Path) -> None:
    placement = place_ranks(read_topology(three_uneven_clusters(tmp_path), range(128)), None, None, False)
    assert [(rank.node, len(rank.cpus)) for rank in placement.ranks] == [(0, 43), (1, 43), (2, 42)]
    assert placement.notes == ()


def test_more_ranks_than_nodes_are_equal_virtual_nodes(tmp_path: Path) -> None:
    topology = read_topology(two_sockets_with_hyperthreads(tmp_path), range(16))
    ranks = place_ranks(topology, 4, None, False).ranks
    assert [(rank.node, rank.cpus) for rank in ranks] == [(0, (0, 1)), (0, (2, 3)), (1, (4, 5)), (1, (6, 7))]


def test_two_ranks_run_on_two_cores(tmp_path: Path) -> None:
    ranks = place_ranks(read_topology(one_node(tmp_path), range(2)), 2, None, False).ranks
    assert [rank.cpus for rank in ranks] == [(0,), (1,)]


def test_a_further_rank_goes_where_cores_are_plentiful() -> None:
    ranks = place_ranks(machine(4, 12), 4, None, False).ranks
    assert [(rank.node, len(rank.cpus)) for rank in ranks] == [(0, 4), (1, 4), (1, 4), (1, 4)]


def test_fewer_ranks_use_the_largest_nodes_and_say_so() -> None:
    placement = place_ranks(machine(2, 8, 8), 2, None, False)
    assert [rank.node for rank in placement.ranks] == [1, 2]
    assert "node 0 stays idle" in placement.notes[0]


def test_more_ranks_than_cores_are_refused_with_the_most_that_fit() -> None:
    with pytest.raises(OperatorError, match="lower --tp to at most 2"):
        place_ranks(machine(2), 3, None, False)


def test_threads_per_worker_caps_every_rank() -> None:
    assert [len(rank.cpus) for rank in place_ranks(machine(8, 3), None, 4, False).ranks] == [4, 3]


def test_a_reserved_core_is_the_first_of_the_first_node() -> None:
    placement = place_ranks(machine(4, 4), None, None, True)
    assert placement.front_end_cpus == (0,)
    assert [rank.cpus for rank in placement.ranks] == [(1, 2, 3), (4, 5, 6, 7)]


def test_the_only_core_cannot_be_reserved() -> None:
    with pytest.raises(OperatorError, match="at least two cores"):
        place_ranks(machine(1), None, None, True)


def test_a_process_without_any_node_is_told_to_widen_its_cpuset() -> None:
    with pytest.raises(OperatorError, match="cpuset"):
        place_ranks(machine(), None, None, False)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=8), st.floats(0.01, 420), st.none() | st.integers(1, 9)
)  # fmt: skip
def test_no_more_threads_than_whole_cores_of_quota_on_as_few_nodes_as_hold_them(
    sizes: list[int], quota: float, tp: int | None
) -> None:
    topology = machine(*sizes, cpu_quota=quota)
    allowed = min(max(1, int(quota)), sum(sizes))
    if tp is not None and tp > allowed:
        with pytest.raises(OperatorError, match="lower --tp to at most"):
            place_ranks(topology, tp, None, False)
        return
    ranks = place_ranks(topology, tp, None, False).ranks
    threads = sum(len(rank.cpus) for rank in ranks)
    used = {rank.node for rank in ranks}
    assert all(set(rank.cpus) <= set(topology.nodes[rank.node].cpus) for rank in ranks)
    if tp is None:
        largest = sorted(sizes, reverse=True)
        assert threads == allowed
        assert quota >= sum(sizes) or sum(largest[: len(used) - 1]) < allowed
    else:
        assert threads <= allowed
        assert (len(ranks), len(used)) == (tp, min(tp, len(sizes)))


def test_a_quota_is_divided_evenly_among_the_nodes_that_it_needs() -> None:
    ranks = place_ranks(machine(16, 16, 4, 16, cpu_quota=40.5), None, None, False).ranks
    assert [(rank.node, len(rank.cpus)) for rank in ranks] == [(0, 14), (1, 13), (3, 13)]


def test_cores_within_a_quota_lie_apart() -> None:
    (rank,) = place_ranks(machine(16, cpu_quota=4), None, None, False).ranks
    assert rank.cpus == (0, 4, 8, 12)


def test_servers_of_one_quota_each_take_nodes_with_free_memory() -> None:
    topology = machine(8, 8, 8, cpu_quota=2)
    first, *others = topology.nodes
    (rank,) = place_ranks(replace(topology, nodes=(replace(first, free_bytes=1), *others)), None, None, False).ranks
    assert rank.node == 1


def test_a_quota_below_the_cores_is_told() -> None:
    (note,) = place_ranks(machine(4, 4, cpu_quota=3.5), None, None, False).notes
    assert note.startswith(
        "the CPU quota of 3.5 of 8 cores allows 3 worker threads on node 0: with more threads, Linux would pause"
    )
    assert place_ranks(machine(4, 4, cpu_quota=8), None, None, False).notes == ()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_quota_below_one_core_warns(cores: int) -> None:
    placement = place_ranks(machine(cores, cpu_quota=0.5), None, None, False)
    assert [len(rank.cpus) for rank in placement.ranks] == [1]
    assert "less than one core" in placement.notes[0]


def test_a_reserved_core_is_one_of_the_quotas() -> None:
    placement = place_ranks(machine(8, cpu_quota=4), None, None, True)
    assert placement.front_end_cpus == (0,)
    assert [len(rank.cpus) for rank in placement.ranks] == [3]
    with pytest.raises(OperatorError, match="raise the CPU quota"):
        place_ranks(machine(8, cpu_quota=1.5), None, None, True)
