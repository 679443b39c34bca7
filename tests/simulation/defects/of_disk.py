"""Defects in what goes to disk and comes from it."""

from collections.abc import Callable
from typing import Any

from numaserve.server.engine.disk_work import DiskWork
from numaserve.server.scheduler.disk.reads import DiskReads
from numaserve.server.scheduler.disk.tier import DiskTier
from numaserve.server.scheduler.disk.writes import Batch, DiskWrites

from tests.simulation.defects.registry import defect


@defect(DiskWrites, "begin")
def a_page_is_evicted_while_it_is_written(
    right: Callable[..., Batch | None], writes: DiskWrites, *arguments: Any
) -> Batch | None:
    """The ranks copy what is in the memory of the page by then."""
    before = writes.batch
    batch = right(writes, *arguments)
    if batch is None or batch is before:
        return batch
    for node in batch.locked:
        writes._kv.tree.unlock(node)
    writes.batch = batch._replace(locked=[])
    return writes.batch


@defect(DiskWrites, "answered", first_seed=170)
def a_record_counts_that_was_not_written(
    right: Callable[..., None], writes: DiskWrites, _done: int, *rest: Any
) -> None:
    """The index notes it."""
    right(writes, len(writes.batch.items) if writes.batch else 0, *rest)


@defect(DiskTier, "moved")
def pages_count_that_one_rank_has_not_read(
    right: Callable[..., None], tier: DiskTier, request_id: int, done: int, problem: str
) -> None:
    """Another one has."""
    reads = {} if tier._reads is None else tier._reads._reads
    if request_id in reads and problem != "cancelled":
        done = len(reads[request_id].records)
    right(tier, request_id, done, problem)


@defect(DiskWork, "_late", first_seed=2450)
def a_late_read_is_given_up_before_the_ranks_have_answered(
    _right: Callable[..., None], work: DiskWork, request_id: int
) -> None:
    """They may still copy to its pages."""
    work._tier.moved(request_id, 0, "cancelled")
    work._wake()


@defect(DiskReads, "workers_died", first_seed=660)
def a_read_outlives_its_workers(_right: Callable[..., None], _reads: DiskReads) -> None:
    """Nobody answers it."""
