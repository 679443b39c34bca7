"""Measured rates: compared with host files, and written as one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.workers.planning.doctor.comparison import Reference, compare_rates, reference_of
from numaserve.workers.planning.doctor.findings import Finding
from numaserve.workers.planning.doctor.host import read_host
from numaserve.workers.planning.doctor.rates import HostRates, host_file, machine_from
from numaserve.workers.planning.roofline.machine import Machine, load_machine

from tests.support.good_host import CPUS, good_host, write_processor
from tests.support.host_rates import RATES, ceilings
from tests.support.machines import machine, one_node, write

MACHINE = Machine(
    name="x", isa="amx", node_cores=[4, 3], node_memory_gib=48, node_read_gb_s=100,
    core_read_gb_s=12, core_gflop_s={"bf16": 4000, "int8": 8000}, link_gb_s=50, meeting_us=2, barrier_us=1,
)  # fmt: skip
WHOLE = Reference("x", MACHINE, is_whole=True)


ONE_NODE = HostRates([3], [ceilings(1, 20)], [20.0], [[None]], [0.01], None, [], [], "")


def rows(rates: HostRates, reference: Reference | None) -> Mapping[str, Finding]:
    return {each.check: each for each in compare_rates(rates, reference)}


def test_rates_as_expected_are_ok() -> None:
    found = rows(RATES, WHOLE)
    assert {each.status for each in found.values()} == {"ok"} and not any(each.change for each in found.values())
    assert found["read bandwidth, node 1"].found == "97 GB/s: 0.97 of x"
    assert found["read bandwidth, node 1"].wanted == "100 GB/s, at least 0.85 of it"
    assert found["barrier, node 1"].found == "1.1 us: 0.91 of x"
    assert found["cache line, same node"].found == "60, 80, 130 ns (min, median, max)"
    assert found["read bandwidth of a core alone"].found == "11.5 GB/s: 0.96 of x"


@pytest.mark.parametrize(
    ("spoilt", "check", "ratio", "cause"),
    [
        ({"ceilings": [ceilings(4, 101), ceilings(3, 84)]}, "read bandwidth, node 1", "0.84", "memory channels"),
        ({"ceilings": [ceilings(4, 101, 3000), ceilings(3, 97)]}, "bf16, each core", "0.75", "governor"),
        ({"core_read_gb_s": [12.0, 9.0]}, "read bandwidth of a core alone", "0.75", "prefetchers"),
        ({"remote_gb_s": [[None, 40.0], [49.0, None]]}, "read bandwidth of other nodes, node 0", "0.80", "links"),
        ({"barrier_us": [0.9, 2.0]}, "barrier, node 1", "0.50", "CPU quota"),
        ({"meeting_us": 20.0}, "meeting over the ring", "0.10", "CPU quota"),
    ],
)
def test_slow_rates_are_suspicious_and_have_causes(
    spoilt: dict[str, object], check: str, ratio: str, cause: str
) -> None:
    found = rows(replace(RATES, **spoilt), WHOLE)  # type: ignore[arg-type]
    assert (found[check].status, cause in found[check].change) == ("advice", True)
    assert f"{ratio} of x" in found[check].found
    assert {each.check for each in found.values() if each.status != "ok"} <= {check, check.replace("bf16", "int8")}


def test_less_than_half_of_the_memory_bandwidth_is_a_problem() -> None:
    found = rows(replace(RATES, ceilings=[ceilings(4, 49), ceilings(3, 97)]), WHOLE)
    assert found["read bandwidth, node 0"].status == "problem"


def test_a_host_with_clusters_off_is_compared_by_its_whole_bandwidth() -> None:
    host = Reference("x", MACHINE.model_copy(update={"node_cores": [2, 2, 2, 1]}), is_whole=True)
    found = rows(RATES, host)["read bandwidth, node 0"]
    assert found.wanted.startswith("200 GB/s") and found.status == "advice"


def test_nodes_of_an_unknown_processor_are_compared_with_the_fastest() -> None:
    found = rows(replace(RATES, ceilings=[ceilings(4, 101), ceilings(3, 70)]), None)
    assert found["read bandwidth, node 1"].found == "70 GB/s: 0.69 of the fastest node"
    assert found["read bandwidth, node 1"].status == "advice"
    assert {each.wanted for name, each in found.items() if "read bandwidth, node" not in name} == {"any", "works"}


def test_a_part_of_a_host_is_compared_by_its_cores_alone() -> None:
    found = rows(replace(RATES, meeting_us=20.0), Reference("x", MACHINE, is_whole=False))
    assert found["meeting over the ring"].wanted == "any"
    assert found["int8, each core"].wanted.startswith("8000 GFLOP/s")


def test_one_core_leaves_much_unknown() -> None:
    found = rows(ONE_NODE, None)
    unknown = {name for name, each in found.items() if each.status == "unknown"}
    assert unknown == {
        *("read bandwidth across nodes", "meeting over the ring"),
        *("cache line, same node", "cache line, other node"),
    }
    assert found["read bandwidth across nodes"].found == "not measurable on one node"
    assert found["read bandwidth, node 3"].wanted == "any"


def test_unbound_memory_is_reported_and_not_measured() -> None:
    found = rows(replace(RATES, remote_gb_s=[[None, None], [None, None]], refusal="mbind: refused"), WHOLE)
    assert found["read bandwidth of other nodes, node 1"].status == "unknown"
    assert (found["memory binding"].status, found["memory binding"].found) == ("advice", "mbind: refused")


def test_a_host_file_is_what_a_plan_reads(tmp_path: Path) -> None:
    written = machine_from(RATES, machine(4, 3), "2 x Xeon: test")
    file = tmp_path / "host.yaml"
    file.write_text(host_file(written, "amx"))
    read = load_machine(str(file))
    assert read == written
    assert read == Machine(
        name="2 x Xeon: test", isa="amx", node_cores=[4, 3], node_memory_gib=48, node_read_gb_s=97,
        core_read_gb_s=11.5, core_gflop_s={"bf16": 4000, "int8": 8000}, link_gb_s=49, meeting_us=1.9, barrier_us=1.1,
    )  # fmt: skip
    assert file.read_text().startswith("# Measured by numaserve doctor with the kernels for amx.\nname: ")


def test_a_host_of_one_node_fetches_as_fast_as_it_reads() -> None:
    written = machine_from(ONE_NODE, machine(1), "x")
    assert (written.link_gb_s, written.meeting_us) == (20, 0.04)


@pytest.mark.parametrize(
    ("name", "sockets", "known"),
    [
        ("Intel(R) Xeon(R) 6980P", 2, "2x6980p"),
        ("Intel(R) Xeon(R) 6980P", 1, "6980p"),
        ("INTEL(R) XEON(R) PLATINUM 8592+", 2, "2x8592+"),
        ("AMD EPYC 9755 128-Core Processor", 1, "epyc-9755"),
        ("AMD EPYC 9755 128-Core Processor", 2, None),
        ("Intel(R) Xeon(R) Platinum 8592", 2, None),
        ("", 1, None),
    ],
)
def test_the_host_file_is_chosen_by_processor_and_sockets(
    name: str, sockets: int, known: str | None, tmp_path: Path
) -> None:
    root = good_host(tmp_path)
    for cpu in range(16):
        write(root / f"{CPUS}/cpu{cpu}/topology/physical_package_id", str(cpu % sockets))
    write_processor(root, "fpu", name)
    found = reference_of(read_host(root, range(16)))
    assert (found and found.name) == known
    assert found is None or not found.is_whole


def test_a_host_with_all_cores_is_whole(tmp_path: Path) -> None:
    root = one_node(tmp_path, cores=64)
    write(root / f"{CPUS}/cpu0/topology/physical_package_id", "0")
    write_processor(root, "fpu", "Intel(R) Xeon(R) Platinum 8592+")
    found = reference_of(read_host(root, range(64)))
    assert found is not None and (found.name, found.is_whole) == ("8592+", True)
