"""The disk tier of an estimate: what fits on the disk, and the memory that the front end needs for it."""

from dataclasses import dataclass, replace
from typing import Any

from numaserve.server.cli.tables import figure_table, number
from numaserve.server.kv_disk.sizes import slots_of
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.kv_disk.records import record_bytes
from numaserve.workers.planning.estimate import Estimate
from numaserve.workers.planning.needs import GIB, format_bytes
from rich.table import Table

_NODE_BYTES = 300  # memory of the front end for a page or an anchor, at most


@dataclass(frozen=True)
class DiskPlan:
    """The records that fit in `limit_bytes`. Bytes are those of all ranks."""

    limit_bytes: int
    pages: int
    page_bytes: int
    anchors: int
    anchor_bytes: int
    pays_from_bytes_per_s: float  # bandwidth above which a prompt is read sooner than computed

    @property
    def tokens(self) -> int:
        """The tokens whose keys and values fit."""
        return self.pages * PAGE_SIZE

    @property
    def front_end_bytes(self) -> int:
        """The memory of the front end for all records."""
        return (self.pages + self.anchors) * _NODE_BYTES


def plan_disk(estimate: Estimate, gib: float) -> DiskPlan:
    """Return what a disk tier of `gib` GiB keeps. Raises `OperatorError` for a model that caches no prefixes."""
    if estimate.kv_records is None:
        raise OperatorError("--kv-disk-gib needs a model that caches prefixes, and an encoder does not: leave it out")
    pages = [record_bytes(each) for each in estimate.kv_records.pages]
    anchors = [record_bytes(each) if each else 0 for each in estimate.kv_records.anchors]
    limit = int(gib * GIB)
    slots = slots_of(limit, pages, anchors)
    prompt = estimate.load.input_len // PAGE_SIZE * sum(pages) + sum(anchors)
    return DiskPlan(
        limit, slots["pages"], sum(pages), slots["anchors"], sum(anchors), prompt / estimate.prefill.seconds
    )


def with_disk(estimate: Estimate, disk: DiskPlan) -> Estimate:
    """Return an estimate whose first node with ranks has the memory of the front end for the tier."""
    first = next(index for index, node in enumerate(estimate.memory) if node.ranks)
    memory = list(estimate.memory)
    memory[first] = replace(memory[first], scratch=memory[first].scratch + disk.front_end_bytes)
    remedies = list(estimate.remedies)
    if estimate.fits and not memory[first].fits:
        remedies = [f"--kv-disk-gib less than {disk.limit_bytes / GIB:g}"]
    return replace(estimate, memory=memory, remedies=remedies)


def disk_table(disk: DiskPlan) -> Table:
    """Return a table of the tier."""
    anchors = ["anchors"] if disk.anchors else []
    columns = ("size", "pages", *anchors, "tokens", "each token", "front end (part of scratch)")
    rows = figure_table("Disk tier", *columns)
    each = f"{disk.page_bytes / PAGE_SIZE / 1024:.0f} KiB"
    counts = [f"{disk.pages}", *([f"{disk.anchors}"] if disk.anchors else []), f"{disk.tokens}"]
    rows.add_row(format_bytes(disk.limit_bytes), *counts, each, format_bytes(disk.front_end_bytes))
    return rows


def disk_note(disk: DiskPlan) -> str:
    """Return a sentence about the bandwidth that a disk needs."""
    return (
        "a cached prompt is read from disk sooner than computed if the disk reads more than "
        f"{number(disk.pays_from_bytes_per_s / 1e6)} MB/s"
    )


def disk_record(disk: DiskPlan) -> dict[str, Any]:
    """Return the tier as a JSON object."""
    return {
        "limit_bytes": disk.limit_bytes,
        "pages": disk.pages,
        "page_bytes": disk.page_bytes,
        "anchors": disk.anchors,
        "anchor_bytes": disk.anchor_bytes,
        "tokens": disk.tokens,
        "front_end_bytes": disk.front_end_bytes,
        "pays_from_bytes_per_s": disk.pays_from_bytes_per_s,
    }
