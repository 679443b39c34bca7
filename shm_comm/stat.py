"""Read-only inspection of the ring of a running launch.

The ring has no name. It is found through the descriptors of a process that holds it (the front end or any worker) and
mapped read-only.
"""

import os
from pathlib import Path

from numaserve.shm_comm import _ring
from numaserve.shm_comm.segment import MEMFD_NAME
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def ring_stat(pid: int) -> _ring.RingSnapshot:
    """Return a snapshot of the ring that process `pid` holds; the newest ring while a launch is being replaced.

    Raises:
        RingError: the process does not exist, may not be inspected, or holds no ring.

    """
    folder = Path(f"/proc/{pid}/fd")
    try:
        rings = [link for link in folder.iterdir() if _is_ring(link)]
    except FileNotFoundError:
        raise _ring.RingError(f"ring-stat: no process has pid {pid}") from None
    except PermissionError:
        raise _ring.RingError(
            f"ring-stat: no permission to inspect process {pid}; run as the user of the process or as root"
        ) from None
    if not rings:
        raise _ring.RingError(
            f"ring-stat: process {pid} holds no ring; give the pid of a `numaserve serve` with two or more ranks"
        )
    try:
        fd = os.open(max(rings, key=lambda link: link.stat().st_ctime_ns), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _ring.RingError(
            f"ring-stat: the ring of process {pid} disappeared during the inspection ({error.strerror})"
        ) from None
    try:
        return _ring.inspect(fd)
    finally:
        os.close(fd)


def render(pid: int) -> RenderableType:
    """Return `ring_stat(pid)` as something rich can print.

    Raises:
        RingError: as `ring_stat`.

    """
    ring = ring_stat(pid)
    title = f"world size {ring.world_size}, lanes {ring.lanes}, slot {ring.slot_bytes >> 10} KiB"
    state = Text(ring.abort_reason, style="bold red") if ring.aborted else Text("running", style="green")
    table = Table(title=title, title_justify="left")
    for heading in ("rank", "pid", "arrived", "done", "waits", "waited", "wait share", "last beat"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, line in enumerate(ring.ranks):
        table.add_row(str(rank), *_cells(line))
    return Group(table, state)


def _is_ring(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith(f"/memfd:{MEMFD_NAME}")
    except OSError:  # closed since the folder was listed
        return False


def _cells(line: _ring.RankSnapshot) -> list[str]:
    if line.pid == 0:
        return ["not attached", *[""] * 6]
    return [
        str(line.pid),
        _span(line.arrived_min, line.arrived_max),
        _span(line.done_min, line.done_max),
        str(line.waits),
        f"{line.wait_seconds:.3f} s",
        f"{line.wait_share:.1%}",
        f"{line.beat_age_seconds:.1f} s ago",
    ]


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least}..{most}"
