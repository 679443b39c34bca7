"""The files of a host that the checks read. Every path is below a root, so that tests can describe other hosts."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from numaserve.workers.planning.cgroups import read_text
from numaserve.workers.planning.topology import ROOT, Topology, parse_cpu_list, read_topology

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


@dataclass(frozen=True)
class Processor:
    """The first processor of /proc/cpuinfo. All fields are empty if the file cannot be read."""

    name: str = ""
    vendor: str = ""
    family: int = 0
    model: int = 0
    stepping: int = 0
    microcode: str = ""
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Host:
    """A host, seen by this process."""

    root: Path
    topology: Topology
    allowed: frozenset[int]  # logical processors in the affinity mask
    kernels: str | None  # instruction set that the kernels use; None if they cannot run
    unbuilt: str  # better instruction set of the processor, which this installation lacks; else empty
    refusal: str  # the reason why the kernels cannot run, empty if it is not known
    processor: Processor

    def text(self, path: str) -> str | None:
        """Return the text of a file without blanks around it, or None if the file cannot be read."""
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return None

    def of_cpus(self, path: str, cpus: Iterable[int] | None = None) -> set[str]:
        """Return the distinct texts of a file below the folders of some processors, by default the allowed ones."""
        found = (self.text(f"{_CPUS}/cpu{cpu}/{path}") for cpu in (self.allowed if cpus is None else cpus))
        return {text for text in found if text}

    def cpus(self, name: str) -> set[int] | None:
        """Return a set of processors such as ``online``, or None if it cannot be read."""
        text = self.text(f"{_CPUS}/{name}")
        return None if text is None or text == "(null)" else parse_cpu_list(text)

    def siblings(self, cpu: int) -> set[int]:
        """Return the hyperthreads of a processor's core, empty if they cannot be read."""
        return parse_cpu_list(self.text(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list") or "")

    def nodes(self) -> dict[int, Path]:
        """Return the folders of all NUMA nodes of the host, by node."""
        folders = (self.root / _NODES).glob("node[0-9]*")
        return dict(sorted((int(path.name.removeprefix("node")), path) for path in folders))

    def node_cpus(self) -> dict[int, set[int]]:
        """Return the processors of all NUMA nodes, by node."""
        return {number: parse_cpu_list(read_text(path / "cpulist")) for number, path in self.nodes().items()}

    def sockets(self, cpus: Iterable[int] | None = None) -> int | None:
        """Return the number of sockets of some processors, by default the allowed ones; None if it cannot be read."""
        return len(self.of_cpus("topology/physical_package_id", cpus)) or None


def read_host(
    root: Path = ROOT,
    affinity: Iterable[int] | None = None,
    *,
    kernels: str | None = None,
    unbuilt: str = "",
    refusal: str = "",
) -> Host:
    """Read the host below `root`. `affinity` replaces the process's own mask."""
    allowed = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    return Host(root, read_topology(root, allowed), allowed, kernels, unbuilt, refusal, read_processor(root))


def read_processor(root: Path = ROOT) -> Processor:
    """Read the first processor of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in read_text(root / "proc/cpuinfo").partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    family, model, stepping = (
        int(fields[key]) if fields.get(key, "").isdigit() else 0 for key in ("cpu family", "model", "stepping")
    )
    flags = frozenset(fields.get("flags", "").split())
    name, vendor, microcode = (fields.get(key, "") for key in ("model name", "vendor_id", "microcode"))
    return Processor(name, vendor, family, model, stepping, microcode, flags)
