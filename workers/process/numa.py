"""Memory policy: libnuma through ctypes, or the same system calls where libnuma is not installed.

On a kernel without NUMA, or in a sandbox that forbids the calls, as most containers do, every function does nothing.
`refusal` then returns the reason. The server works nevertheless: the kernel places a page on the node of the thread
that touches it first, and these threads are pinned to the rank's cores. But the kernel may move the page later, and may
place it on another node when this one is full.
"""

import ctypes
import errno
import functools
import logging
import mmap
import os
import platform
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

_MPOL_BIND = 2  # linux/mempolicy.h
_MPOL_MF_MOVE = 2
_MASK_NODES = 1024  # more than any kernel's MAX_NUMNODES
_SYSCALLS = {
    "x86_64": {"mbind": 237, "set_mempolicy": 238, "move_pages": 279},
    "aarch64": {"mbind": 235, "set_mempolicy": 237, "move_pages": 239},
}
_UNAVAILABLE = {errno.ENOSYS, errno.EPERM}
_QUERY_PAGES = 4096
_MAPPINGS = Path("/proc/self/numa_maps")

_BINDING = ("set_mempolicy", "mbind")
_refused: dict[str, str] = {}  # calls that had no effect, and why

_log = logging.getLogger(__name__)


def refusal() -> str:
    """Return the reason why memory is not bound to a node as requested; empty where it is bound."""
    return next((reason for name, reason in _refused.items() if name in _BINDING), "")


def warn_of_refusal() -> None:
    """Log `refusal`, if there is one."""
    if refusal():
        _log.warning(
            "memory is not bound to NUMA nodes, only placed where pinned threads first touch it: %s; in a container, "
            "allow mbind, set_mempolicy and move_pages in the seccomp profile",
            refusal(),
        )


def bind_memory_to(node: int) -> bool:
    """Allocate all further memory of this process from `node` only.

    Returns whether the policy was set. Raises `OSError` for a node that does not exist or is not allowed.
    """
    mask = _mask(node)
    return _call("set_mempolicy", ctypes.c_int(_MPOL_BIND), mask, ctypes.c_ulong(_MASK_NODES + 1))


def bind_range(address: int, nbytes: int, node: int) -> bool:
    """Bind the pages of ``address .. address + nbytes`` to `node`, moving pages that are already elsewhere.

    `address` is rounded down to a page. Returns whether the pages were bound; raises `OSError` when the kernel refuses.
    """
    start = address - address % mmap.PAGESIZE
    return _call(
        "mbind",
        ctypes.c_void_p(start),
        ctypes.c_ulong(address + nbytes - start),
        ctypes.c_int(_MPOL_BIND),
        _mask(node),
        ctypes.c_ulong(_MASK_NODES + 1),
        ctypes.c_uint(_MPOL_MF_MOVE),
    )


def misplaced_pages(ranges: Iterable[tuple[int, int]], node: int, sample: int | None = None) -> int:
    """Return the number of resident memory pages in the ``(address, nbytes)`` of `ranges` that are not on `node`.

    Pages that were never touched count as well placed. With `sample`, at most that many pages, evenly spread over all
    ranges, are checked, and the count is scaled up. Where the kernel refuses to report single pages, whole mappings are
    counted. That takes longer, so it is done once, and pages that are touched later do not count. Returns 0 where
    nothing is known.
    """
    bounds = np.array(list(ranges), np.int64).reshape(-1, 2)
    first = bounds[:, 0] // mmap.PAGESIZE
    ends = np.cumsum((bounds.sum(axis=1) + mmap.PAGESIZE - 1) // mmap.PAGESIZE - first)  # as if adjacent
    total = int(ends[-1]) if len(ends) else 0
    looked_at = total if sample is None else min(sample, total)
    if looked_at <= 0:
        return 0
    index = np.arange(looked_at, dtype=np.int64) * total // looked_at
    inside = np.searchsorted(ends, index, side="right")
    pages = (first + np.diff(ends, prepend=0) - ends)[inside] + index
    wrong = 0
    for begin in range(0, looked_at, _QUERY_PAGES):
        found = _nodes_of(pages[begin : begin + _QUERY_PAGES] * mmap.PAGESIZE)
        if "move_pages" in _refused:
            return _misplaced_in_mappings(tuple((int(start), int(size)) for start, size in bounds), node)
        wrong += int(np.count_nonzero((found >= 0) & (found != node)))
    return round(wrong * total / looked_at)


def _nodes_of(pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return the node of each page address, or a negative errno for a page that is not resident."""
    addresses = np.ascontiguousarray(pages, np.uint64)
    status = np.full(len(pages), -errno.ENOENT, np.int32)
    # A null list of target nodes turns move_pages into a query.
    _call(
        "move_pages",
        ctypes.c_int(0),
        ctypes.c_ulong(len(pages)),
        ctypes.c_void_p(addresses.ctypes.data),
        None,
        ctypes.c_void_p(status.ctypes.data),
        ctypes.c_int(0),
    )
    return status


@functools.cache
def _misplaced_in_mappings(ranges: tuple[tuple[int, int], ...], node: int) -> int:
    """Count like `misplaced_pages`, for the mappings that hold the ranges, from /proc/self/numa_maps (proc(5))."""
    try:
        lines = [line.split() for line in _MAPPINGS.read_text().splitlines()]
    except OSError:
        return 0
    starts = [int(line[0], 16) for line in lines]
    hit = {
        index
        for begin, nbytes in ranges
        if nbytes
        for index in range(max(0, bisect_right(starts, begin) - 1), bisect_left(starts, begin + nbytes))
    }
    return sum(_pages_elsewhere(lines[index], node) for index in hit)


def _pages_elsewhere(mapping: list[str], node: int) -> int:
    values = dict(word.split("=", 1) for word in mapping if "=" in word)
    kib = int(values.get("kernelpagesize_kB", mmap.PAGESIZE // 1024))
    counts = {name: int(count) for name, count in values.items() if name[0] == "N" and name[1:].isdigit()}
    return sum(count for name, count in counts.items() if name != f"N{node}") * kib * 1024 // mmap.PAGESIZE


def _mask(node: int) -> ctypes.Array[ctypes.c_ulong]:
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    if not 0 <= node < _MASK_NODES:
        raise OSError(errno.EINVAL, f"no such NUMA node: {node}")
    mask = (ctypes.c_ulong * (_MASK_NODES // bits + 1))()
    mask[node // bits] = 1 << (node % bits)
    return mask


def _call(name: str, *arguments: object) -> bool:
    """Make one of the system calls. Return False where it is unsupported; raise `OSError` for refused values."""
    function = _function(name)
    if function is None:
        return False
    if function(*arguments) >= 0:
        return True
    code = ctypes.get_errno()
    if code in _UNAVAILABLE:
        _refused[name] = f"{name}: {os.strerror(code)}"
        return False
    raise OSError(code, f"{name}: {os.strerror(code)}")


@functools.cache
def _function(name: str) -> Callable[..., int] | None:
    """Return libnuma's wrapper of a system call, else libc's generic `syscall`; None where neither is available."""
    try:
        wrapper = getattr(ctypes.CDLL("libnuma.so.1", use_errno=True), name)
    except (OSError, AttributeError):
        number = _SYSCALLS.get(platform.machine(), {}).get(name)
        if number is None:
            _refused[name] = f"libnuma.so.1 is missing and the system call number on {platform.machine()} is unknown"
            return None
        syscall = ctypes.CDLL(None, use_errno=True).syscall
        syscall.restype = ctypes.c_long
        return functools.partial(syscall, ctypes.c_long(number))
    wrapper.restype = ctypes.c_long if name != "move_pages" else ctypes.c_int
    return wrapper  # type: ignore[no-any-return]
