"""The ceilings of a rank: what its cores read and compute at best, measured. Profiles and benchmarks divide by them."""

from collections.abc import Iterable
from pathlib import Path

from numaserve.kernels import Team, isa, peak_flops, read_bandwidth
from numaserve.workers.planning.topology import read_topology
from numaserve.workers.protocol import Ceilings

MIN_READ_BYTES = 512 << 20


def rank_ceilings(team: Team, formats: Iterable[str] = ("bf16",), *, teams: int = 1) -> Ceilings:
    """Measure with a team that there is, in about a third of a second, while `teams` of them may do so at once.

    Bandwidth is that of memory, from a buffer that no cache holds; where memory is too short for one, it is smaller.
    """
    read = read_bandwidth(team, min(bytes_beyond_caches(), spare_bytes() // teams))
    return Ceilings(isa(), team.size, read, {format: peak_flops(team, format) for format in sorted(set(formats))})


def bytes_beyond_caches() -> int:
    """So many bytes that are read over and over come from memory each time."""
    return max(MIN_READ_BYTES, 4 * last_level_cache_bytes())


def last_level_cache_bytes() -> int:
    """Size of the largest cache of the first processor; 0 where Linux does not tell."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(path.read_text().strip().removesuffix("K")) << 10 for path in sizes), default=0)


def spare_bytes() -> int:
    """Half of what the caller's nodes and cgroup have left: a measurement must not get its process killed."""
    machine = read_topology()
    free = sum(node.free_bytes for node in machine.nodes)
    return min(free, free if machine.cgroup_free_bytes is None else machine.cgroup_free_bytes) // 2
