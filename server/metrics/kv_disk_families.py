"""The metrics of the disk tier, which only servers with --kv-disk-path have."""

from numaserve.server.metrics.kv_disk_figures import DiskFigures, DiskMoved
from numaserve.server.metrics.labels import DISK_DIRECTIONS, DISK_PROBLEMS, DISK_RECORD_KINDS, DISK_TIER_STATES
from numaserve.server.metrics.series import Series
from prometheus_client import Counter, Gauge

_ONLY = " Only with --kv-disk-path."


class KvDiskFamilies:
    """Records on disk, transfers, and prefixes that were read."""

    def __init__(self, series: Series) -> None:
        self._shown = DiskFigures()
        self.state = series.each(
            Gauge,
            "numaserve_kv_disk_state",
            "1 for the state of the disk tier, 0 for the others. It is off until the next start if the disk fails."
            + _ONLY,
            "state",
            DISK_TIER_STATES,
        )
        self.records = series.each(
            Gauge,
            "numaserve_kv_disk_records",
            "Cached pages on disk, and anchors of models with recurrent layers or windows." + _ONLY,
            "kind",
            DISK_RECORD_KINDS,
        )
        self.nbytes = series.each(
            Gauge,
            "numaserve_kv_disk_bytes",
            "Size of the records on disk, of all ranks." + _ONLY,
            "kind",
            DISK_RECORD_KINDS,
        )
        self.limit = series.one(
            Gauge, "numaserve_kv_disk_limit_bytes", "Maximum size of the files on disk (--kv-disk-gib)." + _ONLY
        )
        self.rate = series.one(
            Gauge,
            "numaserve_kv_disk_read_bytes_per_second",
            "Read bandwidth of the slowest rank, as last measured. 0: nothing is read." + _ONLY,
        )
        self.moved = series.each(
            Counter,
            "numaserve_kv_disk_moved_bytes_total",
            "Bytes of records that all ranks read or wrote." + _ONLY,
            "direction",
            DISK_DIRECTIONS,
        )
        self.seconds = series.each(
            Counter,
            "numaserve_kv_disk_moved_seconds_total",
            "Time of reads and writes, each of the slowest rank. Transfers may overlap." + _ONLY,
            "direction",
            DISK_DIRECTIONS,
        )
        self.hits = series.one(
            Counter, "numaserve_kv_disk_hits_total", "Prompts that waited for a prefix that was read from disk." + _ONLY
        )
        self.hit_tokens = series.one(
            Counter,
            "numaserve_kv_disk_hit_tokens_total",
            "Prompt tokens that were read from disk instead of computed. A prefix for several prompts counts once."
            + _ONLY,
        )
        self.unpaid = series.one(
            Counter,
            "numaserve_kv_disk_unpaid_total",
            "Prompts whose prefix is on disk and was computed, because reading it would have taken longer." + _ONLY,
        )
        self.problems = series.each(
            Counter,
            "numaserve_kv_disk_problems_total",
            "Reads and writes that did not move all records, by kind. Cancelled reads missed their deadline." + _ONLY,
            "kind",
            DISK_PROBLEMS,
        )

    def show(self, now: DiskFigures) -> None:
        """Set the gauges, and add to the counters what is new."""
        for state, gauge in self.state.items():
            gauge.set(state == now.state)
        for kind, records in now.records.items():
            self.records[kind].set(records.number)
            self.nbytes[kind].set(records.nbytes)
        self.limit.set(now.limit_bytes)
        self.rate.set(now.read_bytes_per_s)
        before, self._shown = self._shown, now
        for direction, moved in now.moved.items():
            earlier = before.moved.get(direction, DiskMoved())
            self.moved[direction].inc(moved.nbytes - earlier.nbytes)
            self.seconds[direction].inc(moved.seconds - earlier.seconds)
        self.hits.inc(now.hits - before.hits)
        self.hit_tokens.inc(now.hit_tokens - before.hit_tokens)
        self.unpaid.inc(now.unpaid - before.unpaid)
        for problem, counter in self.problems.items():
            counter.inc(now.problems.get(problem, 0) - before.problems.get(problem, 0))
