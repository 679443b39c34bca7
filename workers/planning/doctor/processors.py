"""Checks of nodes, cores, the instruction set, the kernel and clocks."""

import re

from numaserve.workers.planning.doctor.findings import Seen, advice, ok, problem
from numaserve.workers.planning.doctor.host import Host
from numaserve.workers.planning.topology import format_cpu_list

_AMX_FLAGS = {"amx_tile", "amx_bf16", "amx_int8"}
# Sapphire Rapids, Emerald Rapids and Granite Rapids: models of family 6.
_AMX_MODELS = {0x8F, 0xCF, 0xAD, 0xAE}
_CLUSTERED_CORES = 32  # of a socket: a Xeon with fewer may have one memory controller for all
_LOAD, _LOAD_PER_CORE = 1.0, 0.1
AMX_KERNEL = (5, 16)  # the first that grants tiles
POPULATING_KERNEL = (5, 14)  # the first with MADV_POPULATE_WRITE


def numa_nodes(host: Host) -> Seen | None:
    """Check that every node with cores has memory that the process may use."""
    cpus = {number: allowed for number, each in host.node_cpus().items() if (allowed := each & host.allowed)}
    if not cpus:
        return None
    found = "; ".join(f"node {number}: {format_cpu_list(each)}" for number, each in cpus.items())
    usable = {node.id for node in host.topology.nodes}
    if missing := sorted(cpus.keys() - usable):
        nodes = ", ".join(map(str, missing))
        return problem(
            f"{found}; no usable memory on node {nodes}",
            f"fit memory modules to node {nodes}, or allow its memory: `AllowedMemoryNodes=` of the unit, or the cpuset"
            " of the container",
        )
    return ok(found)


def clusters(host: Host) -> Seen | None:
    """Check that large Xeons are divided into several nodes a socket."""
    # Of the whole host: a cpuset of one node says nothing about its socket.
    online = host.cpus("online") or set()
    sockets, nodes = host.sockets(online), sum(1 for cpus in host.node_cpus().values() if cpus)
    if sockets is None or not nodes:
        return None
    found = f"{nodes} on {sockets} socket{'s' if sockets > 1 else ''}"
    cores = sum(1 for cpu in online if min(host.siblings(cpu), default=cpu) == cpu)
    if host.processor.vendor == "GenuineIntel" and cores >= _CLUSTERED_CORES * sockets and nodes <= sockets:
        return advice(
            found,
            "BIOS: turn Sub-NUMA Clustering (SNC) on; in a virtual machine, give it a virtual node per node of the"
            " host",
        )
    return ok(found)


def hyperthreads(host: Host) -> Seen | None:
    """Check that no one else may use the second hyperthread of a core."""
    siblings = {cpu: host.siblings(cpu) for cpu in host.allowed}
    if not any(siblings.values()):
        return None
    shared = sorted(cpu for cpu, each in siblings.items() if each - host.allowed)
    if shared:
        return advice(
            f"other hyperthreads of cores {format_cpu_list(shared)} belong to others",
            "give whole cores to the cpuset (Kubernetes: `full-pcpus-only`), or turn hyperthreads off: kernel parameter"
            " `nosmt`",
        )
    on = any(len(each) > 1 for each in siblings.values())
    return ok("on; the second of each core is left idle" if on else "off")


def allowed_cpus(host: Host) -> Seen | None:
    """Check that the affinity mask and the cpuset include all processors."""
    online = host.cpus("online")
    if not online:
        return None
    used = {cpu for node in host.topology.nodes for cpu in (*node.cpus, *node.siblings_left_out)}
    found = f"{len(used & online)} of {len(online)}"
    if online - used:
        return advice(
            f"{found}; without {format_cpu_list(online - used)}",
            "if the others are not meant for neighbours, widen `AllowedCPUs=` or `CPUAffinity=` of the unit, or the"
            " cpuset of the container",
        )
    return ok(found)


def cpu_quota(host: Host) -> Seen | None:
    """Check that Linux does not pause the threads of a step."""
    if host.text("proc/self/cgroup") is None:
        return None
    quota, cores = host.topology.cpu_quota, host.topology.cores
    if quota is None:
        return ok("none")
    found = f"{quota:.4g} for {cores} cores"
    if quota < cores:
        return problem(
            found, "remove `CPUQuota=` of the unit or the CPU limit of the container; bound cores by a cpuset"
        )
    return ok(found)


def isolated(host: Host) -> Seen | None:
    """Check that no core is taken from the scheduler, which leaves it idle or puts all threads on one."""
    cores = host.cpus("isolated")
    if cores is None:
        return None
    if cores:
        return advice(format_cpu_list(cores), "remove `isolcpus=` from the kernel parameters; a cpuset reserves cores")
    ticks = host.cpus("nohz_full")
    return ok(f"none; nohz_full: {format_cpu_list(ticks)}" if ticks else "none")


def instruction_set(host: Host) -> Seen | None:
    """Check that the kernels use the processor's best instruction set."""
    processor, kernels = host.processor, host.kernels
    if host.refusal:
        return problem(host.refusal, "unset NUMASERVE_ISA; use a processor with AVX2, FMA and F16C at least")
    if not processor.flags or kernels is None:
        return None
    if host.unbuilt:
        return problem(
            f"{kernels}; {host.unbuilt} is not built",
            "install a wheel, which has all instruction sets, or build on this host: `make install`",
        )
    if kernels == "portable":
        return _without_amx(host) or advice(
            f"{kernels} (AVX2)",
            "use a processor with AVX-512 and BF16, or let the hypervisor pass it through (QEMU: `-cpu host`)",
        )
    return (_without_amx(host) if kernels != "amx" else None) or ok(kernels)


def _without_amx(host: Host) -> Seen | None:
    """Return the reason why kernels do not use the AMX of the processor; None if it has none."""
    processor = host.processor
    if processor.flags >= _AMX_FLAGS:
        return problem(
            f"{host.kernels}, on a processor with AMX",
            f"unset NUMASERVE_ISA, run Linux {_version(AMX_KERNEL)} or later, and allow `arch_prctl` in the seccomp"
            " profile of the container",
        )
    if processor.vendor == "GenuineIntel" and processor.family == 6 and processor.model in _AMX_MODELS:
        return problem(
            f"{host.kernels}; AMX is hidden",
            f"hypervisor: pass the processor through (QEMU: `-cpu host`); kernel: Linux {_version(AMX_KERNEL)} or"
            " later, without `clearcpuid=`",
        )
    return None


def kernel(host: Host) -> Seen | None:
    """Check that Linux has the calls that the workers make."""
    release = host.text("proc/sys/kernel/osrelease") or ""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is None:
        return None
    version = (int(numbers[1]), int(numbers[2]))
    if host.processor.flags >= _AMX_FLAGS and version < AMX_KERNEL:
        return problem(
            release, f"upgrade to Linux {_version(AMX_KERNEL)} or later: earlier ones do not grant AMX tiles"
        )
    if version < POPULATING_KERNEL:
        return advice(
            release, f"upgrade to Linux {_version(POPULATING_KERNEL)} or later, which fills KV cache pages in advance"
        )
    return ok(release)


def governor(host: Host) -> Seen | None:
    """Check that cores run at their highest clock."""
    return _clock(
        host, "scaling_governor", "`cpupower frequency-set -g performance`, or kernel parameter "
        "`cpufreq.default_governor=performance`"
    )  # fmt: skip


def energy_preference(host: Host) -> Seen | None:
    """Check that the processor's own control of its clock prefers speed."""
    return _clock(
        host,
        "energy_performance_preference",
        "`cpupower set --epp performance`, or BIOS: performance profile",
    )


def load(host: Host) -> Seen | None:
    """Check that no other programs take the cores: measurements would be too low, and steps too slow."""
    average = (host.text("proc/loadavg") or "").partition(" ")[0]
    if not average:
        return None
    if float(average) > max(_LOAD, _LOAD_PER_CORE * host.topology.cores):
        return advice(average, "stop other programs on this host, and measure again")
    return ok(average)


def _clock(host: Host, name: str, change: str) -> Seen | None:
    values = host.of_cpus(f"cpufreq/{name}")
    if not values:
        return None
    found = ", ".join(sorted(values))
    return ok(found) if values == {"performance"} else advice(found, change)


def _version(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
