"""Where a worker's memory lies, as the kernel tells it."""

import re
from pathlib import Path
from typing import NamedTuple

_HUGE_PAGE = 2 << 20
# Mappings that reserve no room for swap and want huge pages: nothing but the kernels' buffers does both.
_OWN = {"nr", "hg"}
_BEGIN = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


class Mapping(NamedTuple):
    """A range of addresses: its bytes, and how many of them are there, by node."""

    size: int
    there: dict[int, int]


def buffers(pid: int) -> list[Mapping]:
    """A worker's weights, KV cache and scratch."""
    where = {int(line.split()[0], 16): _bytes(line) for line in _lines(pid, "numa_maps")}
    found, begin, end = [], 0, 0
    for line in _lines(pid, "smaps"):
        if match := _BEGIN.match(line):
            begin, end = int(match[1], 16), int(match[2], 16)
        elif line.startswith("VmFlags:") and set(line.split()) >= _OWN:
            found.append(Mapping(end - begin, where[begin]))
    return found


def kv_cache(found: list[Mapping], kv_bytes: int) -> list[Mapping]:
    """Those that are as large as a KV cache of so many bytes."""
    size = -(-kv_bytes // _HUGE_PAGE) * _HUGE_PAGE
    return [each for each in found if each.size == size]


def ring_part(pid: int, rank: int, ranks: int) -> dict[int, int]:
    """Bytes of a rank's part of the ring, by node: only of its own part a process sees all pages."""
    # The last mappings are the ranks' parts.
    return _bytes([line for line in _lines(pid, "numa_maps") if "numaserve-ring" in line][rank - ranks])


def by_node(found: list[Mapping]) -> dict[int, int]:
    """Bytes that are there, of all of them together."""
    total: dict[int, int] = {}
    for each in found:
        for node, count in each.there.items():
            total[node] = total.get(node, 0) + count
    return total


def _lines(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().splitlines()


def _bytes(line: str) -> dict[int, int]:
    size = int(line.rpartition("kernelpagesize_kB=")[2]) << 10 if "kernelpagesize_kB=" in line else 0
    return {int(node): int(pages) * size for node, pages in re.findall(r" N(\d+)=(\d+)", line)}
