"""A reader of KV events, which must know what is cached in memory and on disk."""

from numaserve.server.kv_events.history import History
from numaserve.server.kv_events.wire import encode
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE
from numaserve.server.scheduler.disk.digests import next_digest, root_digest
from numaserve.server.scheduler.scheduler import Scheduler

from tests.simulation.truth import PAGE_SIZE
from tests.simulation.world import World
from tests.support.kv_reader import Index, Prefix, told_prefixes

_KEPT = 5


class KVEvents:
    """Reads the events of a scheduler that has a log, and asks late for all that it can still have."""

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        self._world = world
        self._scheduler = scheduler
        self._index = Index()
        self._history = History(PAGE_SIZE, _KEPT)

    def check(self) -> None:
        """Read what is new, and compare."""
        kv, disk = self._scheduler.kv, self._scheduler.disk
        if kv.log is None:
            return
        events = kv.log.take()
        if not events:
            return
        payload = encode(events, PAGE_SIZE, 0.0)
        self._index.apply(payload)
        self._history.add(payload)
        late = Index()
        for _, each in self._history.since(0, 0.0):
            late.apply(each)
        if self._index.prefixes() != told_prefixes(kv.tree, kv.anchors, kv.log._withdrawn):
            self._world.violate("events do not match the pages in memory")
        if (late.blocks, late.on_disk) != (self._index.blocks, self._index.on_disk):
            self._world.violate("a late reader knows something else")
        on_disk = self._index.prefixes_on_disk()
        shelves = None if disk is None else disk.shelves
        if on_disk and (shelves is None or not all(shelves.pages.has(_digest_of(each)) for each in on_disk)):
            self._world.violate("events have a page on disk that is not there")
        self._world.seen["page told on disk"] += len(on_disk)


def _digest_of(prefix: Prefix) -> bytes:
    digest = root_digest(COMMON_SCOPE)
    for block in prefix:
        digest = next_digest(digest, block)  # type: ignore[arg-type]
    return digest
