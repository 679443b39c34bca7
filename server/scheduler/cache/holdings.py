"""The memory of workers that marks and anchors hold besides full pages."""

from collections.abc import Sequence
from typing import NamedTuple

from numaserve.server.scheduler.cache.snapshots import Snapshots
from numaserve.server.scheduler.cache.window_pages import WindowPages


class Tail(NamedTuple):
    """The last pages of a window table, from page `first` of a sequence on."""

    first: int
    pages: tuple[int, ...]


class Holding(NamedTuple):
    """The things besides full pages that a sequence needs to go on after a position."""

    snapshot: int  # of the states after the position; -1: the model has no states
    tails: tuple[Tail, ...]  # of each window table, before the position; empty: the model has no window tables


class Holdings:
    """The snapshots and window pages of a model: what holdings are made of.

    A snapshot has one holder, since workers store in it. Window pages are full and only read, and have any number of
    holders: a holding is made of the pages that its sequence has, without a copy.
    """

    def __init__(self, num_snapshots: int = 0, windows: Sequence[WindowPages] = ()) -> None:
        self.snapshots = Snapshots(num_snapshots) if num_snapshots else None
        self.windows = windows

    def take(self, tails: tuple[Tail, ...]) -> Holding | None:
        """Return a holding of these window pages for a mark of the plan in the making; None without a snapshot."""
        snapshot = -1
        if self.snapshots is not None:
            if not self.snapshots.can_take:
                return None
            snapshot = self.snapshots.take()
        self._hold(tails)
        return Holding(snapshot, tails)

    def moved(self, holding: Holding, tails: tuple[Tail, ...]) -> Holding:
        """Return a holding with the same snapshot, in which the plan in the making stores, and other window pages."""
        if self.snapshots is not None:
            self.snapshots.name(holding.snapshot)
        self._hold(tails)
        self._let_go(holding.tails)
        return Holding(holding.snapshot, tails)

    def free(self, holding: Holding) -> None:
        """Take back what nobody holds any more."""
        if self.snapshots is not None:
            self.snapshots.free(holding.snapshot)
        self._let_go(holding.tails)

    def has_free(self, tails: tuple[Tail, ...]) -> bool:
        """Return whether as many window pages are free as a holding has."""
        return all(pool.num_free >= len(tail.pages) for pool, tail in zip(self.windows, tails, strict=True))

    def take_empty(self, tails: Sequence[Tail]) -> Holding | None:
        """Return a holding that no plan stores in, with new window pages in the place of those of `tails`; None where
        something is lacking."""
        lacks_snapshot = self.snapshots is not None and not self.snapshots.can_take
        if lacks_snapshot or not self.has_free(tuple(tails)):
            return None
        snapshot = -1 if self.snapshots is None else self.snapshots.take()
        pages = [pool.take(len(tail.pages)) for pool, tail in zip(self.windows, tails, strict=True)]
        return Holding(snapshot, tuple(Tail(tail.first, tuple(new)) for tail, new in zip(tails, pages, strict=True)))

    def keep(self, tails: Sequence[Tail]) -> bool:
        """Promise that these window pages will not have to be given up; False where running sequences may lack them."""
        if any(pool.spare < len(tail.pages) for pool, tail in zip(self.windows, tails, strict=True)):
            return False
        self._keep(tails, 1)
        return True

    def keep_no_longer(self, tails: Sequence[Tail]) -> None:
        """Undo a `keep`."""
        self._keep(tails, -1)

    def _keep(self, tails: Sequence[Tail], sign: int) -> None:
        for pool, tail in zip(self.windows, tails, strict=True):
            pool.spare -= sign * len(tail.pages)

    def _hold(self, tails: tuple[Tail, ...]) -> None:
        for pool, tail in zip(self.windows, tails, strict=True):
            pool.hold(tail.pages)

    def _let_go(self, tails: tuple[Tail, ...]) -> None:
        for pool, tail in zip(self.windows, tails, strict=True):
            pool.let_go(tail.pages)
