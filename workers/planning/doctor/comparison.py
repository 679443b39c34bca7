"""Measured rates compared with the host file of the same processor, or with each other."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from numaserve.configs import hosts
from numaserve.workers.planning.doctor.findings import Finding, Seen, advice, finding, ok, problem
from numaserve.workers.planning.doctor.host import Host
from numaserve.workers.planning.doctor.rates import HostRates
from numaserve.workers.planning.roofline.machine import Machine, load_machine

SUSPICIOUS = 0.85  # of what is expected
HALF = 0.5  # of the read bandwidth: half of the memory modules are missing
_NEIGHBOURS = "stop other programs on this host"
_READ_CAUSES = (
    "compare the memory modules with the memory channels (`dmidecode -t 17`), and their speed in the BIOS; BIOS: turn"
    f" Sub-NUMA Clustering on; {_NEIGHBOURS}"
)
_CORE_READ_CAUSES = f"BIOS: turn the hardware prefetchers on; set the governor to performance; {_NEIGHBOURS}"
_LINK_CAUSES = f"compare the speed of the links between sockets in the BIOS; {_NEIGHBOURS}"
_CLOCK_CAUSES = f"set the governor to performance; compare the power limit in the BIOS; {_NEIGHBOURS}"
_WAIT_CAUSES = f"{_CLOCK_CAUSES}; remove the CPU quota"
_WORDS = re.compile(r"[\w+]+")
_TIMES = ("us", "ns")


@dataclass(frozen=True)
class Reference:
    """A host file of the processor."""

    name: str
    machine: Machine
    is_whole: bool  # the process has the cores of the whole host: else rates of nodes cannot be compared


@dataclass(frozen=True)
class _Expected:
    value: float
    source: str


def reference_of(host: Host) -> Reference | None:
    """Return the shipped host with the same processor and number of sockets; None if there is none."""
    words = set(_WORDS.findall(host.processor.name.lower()))
    for name in hosts():
        number, processor = re.findall(r"^(?:(\d+)x)?(.+)$", name)[0]
        if set(processor.split("-")) <= words and host.sockets() == int(number or 1):
            machine = load_machine(name)
            return Reference(name, machine, sum(machine.node_cores) == host.topology.cores)
    return None


def compare_rates(rates: HostRates, reference: Reference | None) -> list[Finding]:
    """Return a row for each rate."""
    whole = reference if reference is not None and reference.is_whole else None
    return [
        *_node_reads(rates, whole),
        _core_read(rates, reference),
        *_computing(rates, reference),
        *_remote_reads(rates, whole),
        *_waits(rates, whole),
        _lines("cache line, same node", rates.same_node_ns, "on nodes of one core"),
        _lines("cache line, other node", rates.other_node_ns, "on one node"),
        _binding(rates),
    ]


def _node_reads(rates: HostRates, whole: Reference | None) -> Iterator[Finding]:
    expected = None
    if whole is not None:
        # A host that is divided into fewer nodes has more bandwidth for each.
        share = len(whole.machine.node_cores) / len(rates.nodes)
        expected = _Expected(whole.machine.node_read_gb_s * share, whole.name)
    elif len(rates.nodes) > 1:
        expected = _Expected(max(rates.read_gb_s), "the fastest node")
    for node, found in zip(rates.nodes, rates.read_gb_s, strict=True):
        yield _rated(f"read bandwidth, node {node}", found, "GB/s", expected, _READ_CAUSES, least=HALF)


def _core_read(rates: HostRates, reference: Reference | None) -> Finding:
    known = None if reference is None else reference.machine.core_read_gb_s
    expected = _Expected(known, reference.name) if reference and known else None
    return _rated("read bandwidth of a core alone", min(rates.core_read_gb_s), "GB/s", expected, _CORE_READ_CAUSES)


def _computing(rates: HostRates, reference: Reference | None) -> Iterator[Finding]:
    known = reference.machine.core_gflop_s.items() if reference else ()
    expected_of = {str(format): _Expected(value, reference.name) for format, value in known if reference}
    for format in sorted(rates.ceilings[0].flops_s):
        expected = expected_of.get(format)
        yield _rated(f"{format}, each core", min(rates.core_gflop_s(format)), "GFLOP/s", expected, _CLOCK_CAUSES)


def _remote_reads(rates: HostRates, whole: Reference | None) -> Iterator[Finding]:
    if len(rates.nodes) == 1:
        yield finding("read bandwidth across nodes", "any", _not_measured("on one node"))
        return
    expected = _Expected(whole.machine.link_gb_s, whole.name) if whole else None
    for index, node in enumerate(rates.nodes):
        check, found = f"read bandwidth of other nodes, node {node}", rates.link_gb_s(index)
        if found is None:
            yield finding(check, "any", _not_measured("with memory that is not bound to nodes"))
        else:
            yield _rated(check, found, "GB/s", expected, _LINK_CAUSES)


def _waits(rates: HostRates, whole: Reference | None) -> Iterator[Finding]:
    expected = _Expected(whole.machine.barrier_us, whole.name) if whole else None
    for node, found in zip(rates.nodes, rates.barrier_us, strict=True):
        yield _rated(f"barrier, node {node}", found, "us", expected, _WAIT_CAUSES)
    check = "meeting over the ring"
    if rates.meeting_us is None:
        yield finding(check, "any", _not_measured("on one core"))
    else:
        expected = _Expected(whole.machine.meeting_us, whole.name) if whole else None
        yield _rated(check, rates.meeting_us, "us", expected, _WAIT_CAUSES)


def _lines(check: str, ns: Sequence[float], where: str) -> Finding:
    if not ns:
        return finding(check, "any", _not_measured(where))
    return finding(check, "any", ok(f"{min(ns):.0f}, {median(ns):.0f}, {max(ns):.0f} ns (min, median, max)"))


def _binding(rates: HostRates) -> Finding:
    seen = ok("works")
    if rates.refusal:
        seen = advice(rates.refusal, "allow mbind, set_mempolicy and move_pages in the container's seccomp profile")
    return finding("memory binding", "works", seen)


def _rated(
    check: str, found: float, unit: str, expected: _Expected | None, causes: str, *, least: float = 0.0
) -> Finding:
    """Return the row of a rate or a time. A ratio below `least` is a problem."""
    shown = f"{found:.4g} {unit}"
    if expected is None:
        return finding(check, "any", ok(shown))
    ratio = expected.value / found if unit in _TIMES else found / expected.value
    shown = f"{shown}: {ratio:.2f} of {expected.source}"
    wanted = f"{expected.value:.4g} {unit}, at least {SUSPICIOUS} of it"
    if ratio >= SUSPICIOUS:
        return finding(check, wanted, ok(shown))
    return finding(check, wanted, problem(shown, causes) if ratio < least else advice(shown, causes))


def _not_measured(where: str) -> Seen:
    return Seen(f"not measurable {where}", status="unknown")
