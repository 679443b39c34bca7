"""The events of pages on disk, as a reader adds them up."""

import msgspec
from numaserve.server.kv_events.history import History
from numaserve.server.kv_events.wire import encode
from numaserve.server.scheduler.cache.kv_events import KVEventLog, PagesCleared, PagesRemoved, PagesStored
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.disk.directory import DiskDirectory

from tests.support.disk_ranks import PAGE, PROMPT, Ranks
from tests.support.kv_reader import Index, Prefix

ANYONE = Client("anyone")
PREFIXES: set[Prefix] = {
    tuple(tuple(PROMPT[at : at + PAGE]) for at in range(0, depth * PAGE, PAGE)) for depth in range(1, 6)
}


class Told:
    """A server, and what its readers know."""

    def __init__(self, pages: DiskDirectory | None = None) -> None:
        self.log = KVEventLog("model")
        self.ranks = Ranks(pages, self.log)
        self.events: list[object] = []
        self._index = Index()

    def known(self) -> tuple[set[Prefix], set[Prefix]]:
        """The prefixes in memory and on disk, by all events so far."""
        self.events = list(self.log.take())
        if self.events:
            self._index.apply(encode(self.events, PAGE, 0.0))  # type: ignore[arg-type]
        return self._index.prefixes(), self._index.prefixes_on_disk()


async def served() -> Told:
    """A server that has a prompt in memory and on disk."""
    told = Told()
    await told.ranks.open()
    told.ranks.serve("first", ANYONE)
    assert told.known() == (PREFIXES, set())
    told.ranks.move()
    assert told.known() == (PREFIXES, PREFIXES)
    return told


async def test_a_page_that_is_evicted_from_memory_stays_on_disk_and_is_in_both_when_it_is_read() -> None:
    told = await served()
    told.ranks.scheduler.kv.flush()
    assert told.known() == (set(), PREFIXES)
    assert not any(isinstance(each, PagesCleared) for each in told.events)
    told.ranks.serve("second", ANYONE)
    assert told.known() == (PREFIXES, PREFIXES)


async def test_after_a_restart_a_page_is_told_when_it_is_read_or_computed_again() -> None:
    for bytes_per_s in (1e9, 1.0):  # the disk is quicker, or computing
        told = Told((await served()).ranks.index.pages)
        await told.ranks.open(bytes_per_s)
        assert told.known() == (set(), set())
        told.ranks.serve("again", ANYONE)
        told.ranks.move()
        assert told.known() == (PREFIXES, PREFIXES)
        assert told.ranks.work.figures().records["pages"].number == 5


async def test_a_page_that_makes_place_on_disk_is_gone_there_alone() -> None:
    told = Told(DiskDirectory(5))
    await told.ranks.open()
    told.ranks.serve("first", ANYONE)
    told.ranks.move()
    told.ranks.serve("other", ANYONE, list(range(100, 100 + 2 * PAGE + 1)))
    told.ranks.move()
    in_memory, on_disk = told.known()
    assert len(in_memory) == 7
    assert len(on_disk & PREFIXES) == 3
    assert len(on_disk) == 5


async def test_a_flush_clears_both_and_a_tier_that_is_off_has_nothing() -> None:
    told = await served()
    assert told.ranks.scheduler.flush_cache()
    assert told.known() == (set(), set())
    assert told.events == [PagesCleared()]
    told = await served()
    told.ranks.work.switch_off("it broke")
    assert told.known() == (PREFIXES, set())
    told.ranks.scheduler.kv.flush()
    assert told.known() == (set(), set())


async def test_pages_of_salts_and_groups_are_told_nowhere() -> None:
    told = Told()
    await told.ranks.open()
    told.ranks.serve("of a team", Client("key", cache_group="team"))
    told.ranks.serve("with a salt", ANYONE, cache_salt="secret")
    assert told.ranks.move()
    told.ranks.work.keep_groups({""})
    assert told.known() == (set(), set())


def test_the_medium_of_pages_on_disk_has_a_name_and_a_late_reader_learns_it_after_the_parent() -> None:
    history = History(PAGE, limit=1)
    page = [1, 2, 3, 4]
    history.add(
        encode([PagesStored(None, [7, 8], page * 2), PagesStored(None, [7, 8], page * 2, on_disk=True)], PAGE, 0)
    )
    # The page of the parent was damaged on disk, and is written again.
    history.add(encode([PagesRemoved([7], on_disk=True), PagesStored(None, [7], page, on_disk=True)], PAGE, 0))
    history.add(encode([PagesRemoved([8])], PAGE, 0))
    history.add(encode([], PAGE, 0))
    [(_, summary), _] = history.since(0, 0)
    _, *stored = msgspec.msgpack.decode(summary)[1]
    assert [(each["medium"], each["block_hashes"]) for each in stored] == [(None, [7]), ("DISK", [7, 8])]
    [removed] = msgspec.msgpack.decode(encode([PagesRemoved([7], on_disk=True)], PAGE, 0))[1]
    assert removed == {"type": "BlockRemoved", "block_hashes": [7], "medium": "DISK"}
