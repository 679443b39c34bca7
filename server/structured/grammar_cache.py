"""A cache of compiled grammars for later requests of the same scope with the same constraint."""

from numaserve.server.common.fair_lru import FairLru
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.structured.types import Constraint, MatcherFactory

Scoped = tuple[CacheScope, Constraint]


class GrammarCache:
    """The LRU cache of compiled grammars, bounded by a number of bytes.

    All clients share the grammars, but each counts towards the client that had it compiled. A client's grammars are
    never evicted for those of a client that holds more.
    """

    def __init__(self, max_bytes: int) -> None:
        self._kept: FairLru[Scoped, MatcherFactory] = FairLru(max_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, scoped: Scoped) -> MatcherFactory | None:
        """Return the cached grammar of a scope's constraint; None if there is none."""
        return self._kept.get(scoped)

    def keep(self, client: str, scoped: Scoped, factory: MatcherFactory, nbytes: int) -> None:
        """Cache `factory`, which takes `nbytes`, for the client of that name, unless `scoped` has an entry."""
        if self._kept.get(scoped) is None:
            self._kept.put(client.encode(), scoped, factory, nbytes)
