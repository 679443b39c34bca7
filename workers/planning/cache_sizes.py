"""The division of memory among slots, snapshots of recurrent states, and pages of KV cache."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.windows import Window
from numaserve.workers.layers.partition import Partition
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.needs import GIB, RankNeeds, format_bytes, full_pages, rank_needs
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.pools import Pool, TooLittleMemory
from numaserve.workers.planning.states import SNAPSHOT_SHARE, least_snapshots, most_snapshots, slot_counts
from numaserve.workers.planning.windows import divide_pages, leave_enough, slots_for_windows, table_windows


@dataclass(frozen=True)
class _Rest:
    """The bytes of a pool that weights, scratch and slots leave, and those of a page and of a snapshot in it.
    `window_parts` are those of the layers with each window in a page."""

    left: int
    page: int
    snapshot: int
    window_parts: Sequence[int]


@dataclass(frozen=True)
class CacheSizes:
    """The numbers of slots, of pages of KV cache, of snapshots, and of pages of each window table."""

    slots: int
    num_pages: int
    num_snapshots: int
    window_pages: tuple[int, ...]


def divide_memory(
    options: DeploymentOptions, model: ModelConfig, partition: Partition, pools: Sequence[Pool]
) -> tuple[RankNeeds, CacheSizes]:
    """Return the needs and caches of the preferred number of slots that leaves enough memory for snapshots, or of the
    smallest number. Raise `OperatorError` if these do not fit."""

    def of(slots: int) -> _Division:
        given = replace(options, max_running_requests=slots)
        needs = rank_needs(given, model, partition)
        full = full_pages(given, model, options.context_length or model.max_position)
        return _Division(given, needs, _rests(given, needs, pools), full, table_windows(given, model))

    *more, fewest = slot_counts(options, model)
    for slots in more:
        with suppress(TooLittleMemory):
            division = of(slots)
            if options.state_cache_gib == 0 or division.planned_snapshots >= least_snapshots(slots):
                return division.needs, division.sizes()
    division = of(fewest)
    if division.windows and division.num_pages:
        division = of(slots_for_windows(division.options, division.num_pages, lambda slots: of(slots).has_tables))
    return division.needs, division.sizes()


def _rests(options: DeploymentOptions, needs: RankNeeds, pools: Sequence[Pool]) -> list[_Rest]:
    """Return what weights, scratch and slots leave of each pool. Raise `TooLittleMemory` for the pool that lacks most
    for two pages."""
    rests: list[_Rest] = []
    lacking: list[tuple[int, Pool]] = []
    for pool in pools:
        taken, page, snapshot = (
            sum(each[rank] for rank in pool.ranks) for each in (needs.fixed, needs.per_page, needs.per_snapshot)
        )
        parts = [sum(each[rank] for rank in pool.ranks) for each in needs.per_window_page]
        rest = _Rest(pool.usable_bytes - taken, page, snapshot, parts)
        rests.append(rest)
        if rest.left < 2 * page:
            lacking.append((2 * page - rest.left, pool))
    if lacking:
        missing, pool = max(lacking, key=lambda each: each[0])
        raise _too_little(options, needs, pools, pool, missing)
    return rests


def _too_little(
    options: DeploymentOptions, needs: RankNeeds, pools: Sequence[Pool], pool: Pool, missing: int
) -> TooLittleMemory:
    weights, scratch, states = (
        sum(each[rank] for rank in pool.ranks) for each in (needs.weights, needs.scratch, needs.states)
    )
    slots, images = options.max_running_requests, sum(needs.images[rank].besides_weights for rank in pool.ranks)
    parts = [f"weights ({format_bytes(weights)})", f"scratch ({format_bytes(scratch)})"]
    if images:
        parts.append(f"image input ({format_bytes(images)})")
    if states:
        parts.append(f"recurrent states of {_sequences(slots)} ({format_bytes(states)})")
    *first, last = parts
    fewer = _slots_that_fit(needs, pools, slots)
    return TooLittleMemory(
        f"too little memory {pool.place}: {', '.join(first)} and {last} do not fit in"
        f" {format_bytes(pool.usable_bytes)}{pool.remark}",
        missing,
        (
            *([f"set --max-running-requests to at most {fewer}"] if fewer else []),
            *pool.remedies,
            "use a smaller model",
        ),
    )


def _slots_that_fit(needs: RankNeeds, pools: Sequence[Pool], slots: int) -> int:
    """Return the number of slots whose states fit every pool, 0 if there are no states or if none fits."""
    found = slots
    for pool in pools:
        taken, states, page = (
            sum(each[rank] for rank in pool.ranks) for each in (needs.fixed, needs.states, needs.per_page)
        )
        if states:
            found = min(found, (pool.usable_bytes - 2 * page - taken + states) * slots // states)
    return max(found, 0) if found < slots else 0


@dataclass(frozen=True)
class _Division:
    """The division of what is left among snapshots and pages."""

    options: DeploymentOptions
    needs: RankNeeds
    rests: Sequence[_Rest]
    full_pages: int  # of sequences of full length in all slots; there are never more pages
    windows: Sequence[Window]  # that have page tables of their own

    @property
    def planned_snapshots(self) -> int:
        """The number of snapshots without `state_cache_gib`."""
        share = _number([(rest.left // SNAPSHOT_SHARE, rest.snapshot) for rest in self.rests])
        most = most_snapshots(self.options.max_running_requests)
        return min(self._fitting_snapshots, max(share, self._snapshots_beside(self.full_pages)), most)

    @property
    def _fitting_snapshots(self) -> int:
        """The most snapshots that fit next to the KV cache of `kv_cache_gib`, or to the smallest KV cache."""
        wanted = self._wanted_pages
        return self._snapshots_beside(2 if wanted is None else min(wanted, self.full_pages))

    def _snapshots_beside(self, pages: int) -> int:
        return _number([(rest.left - pages * rest.page, rest.snapshot) for rest in self.rests])

    @property
    def has_tables(self) -> bool:
        """Whether windows have page tables of their own."""
        return bool(self.windows) and leave_enough(self.options, self.windows, min(self.num_pages, self.full_pages))

    @property
    def num_pages(self) -> int:
        """The number of pages of all layers."""
        if self._wanted_pages is not None:
            return self._wanted_pages
        return _number([(rest.left - self._num_snapshots * rest.snapshot, rest.page) for rest in self.rests])

    @property
    def _num_snapshots(self) -> int:
        gib = self.options.state_cache_gib
        return self.planned_snapshots if gib is None else self.needs.snapshots_in(gib)

    @property
    def _wanted_pages(self) -> int | None:
        gib = self.options.kv_cache_gib
        return None if gib is None else int(gib * GIB) // sum(self.needs.per_page)

    def sizes(self) -> CacheSizes:
        """Return the snapshots and pages that fit together. Raise `OperatorError` for sizes that do not fit."""
        self._check_pages()
        snapshots = self._num_snapshots
        if self.options.state_cache_gib is not None:
            self._check_snapshots(snapshots)
        pages = self.num_pages
        common, of_windows = pages, tuple[int, ...]()
        if self.has_tables:
            parts = [(rest.page, rest.window_parts) for rest in self.rests]
            common, of_windows = divide_pages(self.options, self.windows, parts, pages, self.full_pages)
        return CacheSizes(self.options.max_running_requests, common, snapshots, of_windows)

    def _check_pages(self) -> None:
        most = _number([(rest.left, rest.page) for rest in self.rests])
        if self._wanted_pages is not None and self._wanted_pages > most:
            raise OperatorError(
                f"--kv-cache-gib {self.options.kv_cache_gib:g} does not fit in memory together with the weights: lower"
                f" it to at most {most * sum(self.needs.per_page) / GIB:.2f}, or raise --mem-fraction-static"
            )

    def _check_snapshots(self, wanted: int) -> None:
        most, slots = self._fitting_snapshots, self.options.max_running_requests
        if wanted > most:
            raise OperatorError(
                f"--state-cache-gib {self.options.state_cache_gib:g} does not fit in memory together with the weights,"
                f" the KV cache and the recurrent states of {_sequences(slots)}: lower it to at most"
                f" {most * sum(self.needs.per_snapshot) * 100 // GIB / 100:.2f}, lower --max-running-requests or raise"
                " --mem-fraction-static"
            )


def _number(parts: Sequence[tuple[int, int]]) -> int:
    """Return the number of items for which each part (bytes, bytes of an item) has enough memory."""
    return min((left // size for left, size in parts if size), default=0)


def _sequences(count: int) -> str:
    return "a sequence" if count == 1 else f"{count} sequences"
