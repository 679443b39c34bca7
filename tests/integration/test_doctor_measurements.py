"""The measurements of `numaserve doctor` on this machine, with sizes that take no time."""

import os
import sys
from pathlib import Path

import pytest
from numaserve.workers.bench import group
from numaserve.workers.bench.host import measure_host
from numaserve.workers.bench.operations.lines import core_pairs
from numaserve.workers.planning.doctor.comparison import compare_rates
from numaserve.workers.planning.doctor.rates import machine_from
from numaserve.workers.planning.placement import RankCores
from numaserve.workers.planning.topology import HugePages, Node, Topology

GIB = 1 << 30
NBYTES = 8 << 20
QUICK_RANK = Path(__file__).with_name("quick_rank.py")
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.fixture(autouse=True)
def _quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_COMMAND", (sys.executable, str(QUICK_RANK)))


def topology(*cpus: tuple[int, ...]) -> Topology:
    """Nodes of some cores each, all with the memory of the first node."""
    nodes = (Node(0, each, (), GIB, GIB) for each in cpus)
    return Topology(tuple(nodes), None, HugePages("madvise", ()), None)


@TWO_CORES
def test_two_nodes_are_measured_at_once() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    machine, said = topology((first,), (second,)), list[str]()
    rates = measure_host(machine, said.append, passes=2, pairs=4, nbytes=NBYTES)
    assert [each.threads for each in rates.ceilings] == [1, 1]
    assert min(*rates.read_gb_s, *rates.core_read_gb_s, *rates.core_gflop_s("bf16"), *rates.barrier_us) > 0
    (own, from_second), (from_first, own_too) = rates.remote_gb_s
    assert own is own_too is None
    assert rates.refusal or (from_second is not None and from_first is not None and min(from_second, from_first) > 0)
    assert rates.meeting_us is not None and rates.meeting_us > 0
    assert rates.same_node_ns == [] and len(rates.other_node_ns) == 1 and rates.other_node_ns[0] > 0
    assert "reading memory of other nodes, 1/1" in said
    assert machine_from(rates, machine, "x").node_cores == [1, 1]
    assert {each.check for each in compare_rates(rates, None)} >= {"read bandwidth, node 0", "meeting over the ring"}


def test_one_core_has_no_one_to_meet() -> None:
    core = min(os.sched_getaffinity(0))
    rates = measure_host(topology((core,)), lambda _: None, passes=1, pairs=4, nbytes=NBYTES)
    assert (rates.meeting_us, rates.same_node_ns, rates.other_node_ns) == (None, [], [])
    assert rates.remote_gb_s == [[None]] and rates.read_gb_s[0] > 0


def test_pairs_of_cores_are_spread_over_the_nodes() -> None:
    ranks = [RankCores(node, tuple(range(16 * node, 16 * node + 16))) for node in range(3)]
    same, other = core_pairs(ranks, 12)
    assert len(set(same)) == len(set(other)) == 12
    assert {(first // 16, second // 16) for first, second in same} == {(0, 0), (1, 1), (2, 2)}
    assert {(first // 16, second // 16) for first, second in other} == {(0, 1), (0, 2), (1, 2)}
    few, none = core_pairs([RankCores(0, (0, 1, 2))], 12)
    assert (few, none) == ([(0, 1), (0, 2), (1, 2)], [])
