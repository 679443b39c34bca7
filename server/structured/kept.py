"""Compiled grammars that are kept for the next request of the same scope with the same constraint."""

from collections import OrderedDict

from numaserve.server.scheduler.cache_scope import CacheScope
from numaserve.server.structured.types import Constraint, MatcherFactory

Scoped = tuple[CacheScope, Constraint]


class KeptGrammars:
    """The compiled grammars that were used last, as many as fit a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Scoped, tuple[MatcherFactory, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, scoped: Scoped) -> MatcherFactory | None:
        """Return what was kept for a constraint of a scope, if it still is."""
        if (kept := self._kept.get(scoped)) is None:
            return None
        self._kept.move_to_end(scoped)
        return kept[0]

    def keep(self, scoped: Scoped, factory: MatcherFactory, nbytes: int) -> None:
        """Keep `factory`, which takes `nbytes`, in place of those that were not used for longest."""
        if scoped in self._kept or nbytes > self._max_bytes:
            return
        self._kept[scoped] = (factory, nbytes)
        self._bytes += nbytes
        while self._bytes > self._max_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed
