"""The number of records that the tier's space has room for."""

from collections.abc import Sequence

from numaserve.server.kv_disk.cells import CELL_BYTES
from numaserve.server.scheduler.disk.changes import RecordKind

_INDEX_BYTES = 2 * CELL_BYTES  # of a node: up to half of the index is dead


def slots_of(limit: int, page_bytes: Sequence[int], anchor_bytes: Sequence[int]) -> dict[RecordKind, int]:
    """Return the slots of each kind of record in `limit` bytes, from the bytes of a record on each rank.

    Where a model has anchors, they take half of the space, but are no more than the pages: a page has at most one
    anchor.
    """
    page = sum(page_bytes) + _INDEX_BYTES
    if not any(anchor_bytes):
        return {"pages": limit // page, "anchors": 0}
    anchor = sum(anchor_bytes) + _INDEX_BYTES
    anchors = min(limit // (2 * anchor), limit // (page + anchor))
    return {"pages": (limit - anchors * anchor) // page, "anchors": anchors}
