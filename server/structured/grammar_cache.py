"""Compiled grammars that are kept for the next request of the same scope with the same constraint."""

from numaserve.server.common.fair_lru import FairLru
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.structured.types import Constraint, MatcherFactory

Scoped = tuple[CacheScope, Constraint]


class GrammarCache:
    """The compiled grammars that were used last, as many as fit a number of bytes. They are there for all clients, and
    count for the one that had them compiled: no client's grammars go for those of a client that holds more."""

    def __init__(self, max_bytes: int) -> None:
        self._kept: FairLru[Scoped, MatcherFactory] = FairLru(max_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, scoped: Scoped) -> MatcherFactory | None:
        """Return what was kept for a constraint of a scope, if it still is."""
        return self._kept.get(scoped)

    def keep(self, client: str, scoped: Scoped, factory: MatcherFactory, nbytes: int) -> None:
        """Keep `factory`, which takes `nbytes`, for the client of that name, if there is none for `scoped`."""
        if self._kept.get(scoped) is None:
            self._kept.put(client.encode(), scoped, factory, nbytes)
