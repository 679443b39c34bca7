"""The size of the cached prefixes that the disk tier keeps."""

from dataclasses import dataclass

from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.needs import RankNeeds
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.windows import table_windows


@dataclass(frozen=True)
class KvRecords:
    """Bytes of a page and of an anchor, by rank. Anchors have none where every page is one."""

    pages: list[int]
    anchors: list[int]


def kv_records(options: DeploymentOptions, model: ModelConfig, needs: RankNeeds, *, window_tables: bool) -> KvRecords:
    """Return what each rank keeps of a page, and of an anchor. With `window_tables`, layers with a window have pages of
    their own, which anchors keep."""
    windows = list(zip(table_windows(options, model), needs.per_window_page, strict=True)) if window_tables else []
    ranks = range(len(needs.per_page))
    return KvRecords(
        [needs.per_page[rank] - sum(part[rank] for _, part in windows) for rank in ranks],
        [
            needs.per_snapshot[rank] + sum(window.tail_pages() * part[rank] for window, part in windows)
            for rank in ranks
        ],
    )
