"""Measured ceilings of a rank: the best rates at which its cores read and compute. Profiles and benchmarks divide by
them."""

import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from numaserve.kernels import Team, isa, peak_flops, read_bandwidth, read_seconds
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.planning.topology import read_topology

MIN_READ_BYTES = 512 << 20
_CACHES = 2  # times the last-level cache: data of this size is evicted before it is read again
_SLICE_BYTES = 32 << 20  # some milliseconds
_READ_PASSES = 3  # for each way of reading
_PEAK_PASSES = 3
_READING_S = 0.2  # no pass begins after this time

Range = tuple[int, int]  # an address and a number of bytes


def rank_ceilings(
    team: Team, formats: Iterable[str] = ("bf16",), *, teams: int = 1, nbytes: int | None = None
) -> Ceilings:
    """Measure with an existing team, in about a third of a second, while up to `teams` teams may measure at once.

    Bandwidth is measured from a buffer of `nbytes`, by default one larger than any cache; if memory is short, the
    buffer is smaller.
    """
    read = read_bandwidth(team, nbytes or min(bytes_beyond_caches(), spare_bytes() // teams))
    return Ceilings(isa(), team.size, read, {format: peak_flops(team, format) for format in sorted(set(formats))})


def ceilings_in_slices(
    team: Team, formats: Iterable[str], resident: Sequence[Range]
) -> Generator[None, None, Ceilings]:
    """Measure while steps run between two slices, each of some hundredths of a second at most.

    Nothing is allocated: bandwidth is that of reading `resident`, memory that the rank holds anyway. Where that is less
    than `_CACHES` times the last cache, it is not measured: what is small is read from the cache.
    """
    read = yield from _bandwidth_in_slices(team, resident)
    peaks: dict[str, float] = {}
    for format in sorted(set(formats)):
        for _ in range(_PEAK_PASSES):
            peaks[format] = max(peaks.get(format, 0.0), peak_flops(team, format, passes=1))
            yield
    return Ceilings(isa(), team.size, read, peaks)


def _bandwidth_in_slices(team: Team, resident: Sequence[Range]) -> Generator[None, None, float | None]:
    wanted = _CACHES * last_level_cache_bytes() or MIN_READ_BYTES
    if sum(nbytes for _, nbytes in resident) < wanted:
        return None
    # Each pass goes on where the one before has ended: of large models it reads what no cache has seen for long.
    slices = itertools.cycle(_slices(resident))
    best, spent = 0.0, 0.0
    for number in range(2 * _READ_PASSES):
        if number >= 2 and spent > _READING_S:
            break
        done, seconds = 0, 0.0
        while done < wanted:
            ranges = next(slices)
            # Which of the two reads more differs between processors.
            seconds += read_seconds(team, ranges, fetch_ahead=number % 2 == 0)
            done += sum(nbytes for _, nbytes in ranges)
            yield
        best, spent = max(best, done / seconds), spent + seconds
    return best


def _slices(resident: Iterable[Range]) -> Iterator[list[Range]]:
    """All of `resident`, in its order, in lists of ranges of `_SLICE_BYTES` each but for the last one."""
    ranges: list[Range] = []
    left = _SLICE_BYTES
    for address, nbytes in resident:
        done = 0
        while done < nbytes:
            taken = min(nbytes - done, left)
            ranges.append((address + done, taken))
            done, left = done + taken, left - taken
            if not left:
                yield ranges
                ranges, left = [], _SLICE_BYTES
    if ranges:
        yield ranges


def bytes_beyond_caches() -> int:
    """Return a number of bytes that no cache holds: reading them repeatedly reads memory each time."""
    return max(MIN_READ_BYTES, 4 * last_level_cache_bytes())


def last_level_cache_bytes() -> int:
    """Size of the largest cache of the first processor; 0 where Linux does not report it."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(path.read_text().strip().removesuffix("K")) << 10 for path in sizes), default=0)


def spare_bytes() -> int:
    """Half of what the caller's nodes and cgroup have left: a measurement must not get its process killed."""
    machine = read_topology()
    free = sum(node.free_bytes for node in machine.nodes)
    return min(free, free if machine.cgroup_free_bytes is None else machine.cgroup_free_bytes) // 2
