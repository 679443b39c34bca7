"""The events of cached pages: whoever adds them up has the radix tree."""

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant
from numaserve.server.kv_events.history import History
from numaserve.server.kv_events.wire import encode
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.kv_events import KVEventLog, PagesCleared, PagesRemoved, PagesStored
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope
from numaserve.server.scheduler.sequence import SchedulerConfig
from scheduler_simulation import Service
from test_scheduler_random import RandomService

from tests.support.kv_reader import Index, told_prefixes
from tests.support.plan_limits import with_limits

KEPT = 3


class ToldService(RandomService):
    """Whatever happens, a reader of the events knows what is cached: one that has read all of them, and one that asks
    for them anew, of which the last few are kept."""

    def make_service(self, config: SchedulerConfig, ahead: bool, drafts: bool) -> Service:
        self.log = KVEventLog("model")
        self.history = History(config.page_size, KEPT)
        self.reader, self.late = Index(), Index()
        self.late_from = 0
        # Events have the placeholders of images, by which a reader cannot distinguish two images.
        return Service(with_limits(config, feature_tiles=0), ahead, self.log, drafts=drafts)

    @invariant()
    def the_reader_has_the_tree(self) -> None:
        if not hasattr(self, "service"):
            return
        page_size = self.service.config.page_size
        if events := self.log.take():
            payload = encode(events, page_size, 0.0)
            self.reader.apply(payload)
            self.history.add(payload)
        kv = self.service.scheduler.kv
        prefixes = told_prefixes(kv.tree, kv.anchors, self.service.draining)
        assert self.reader.prefixes() == prefixes
        if self.history.end % 2 * KEPT == 0:  # now it has missed none, now some, now more than are kept
            for number, payload in self.history.since(self.late_from, 0.0):
                assert number >= self.late_from
                self.late.apply(payload)
                self.late_from = number + 1
            assert self.late_from == self.history.end
            assert self.late.prefixes() == prefixes


TestToldService = ToldService.TestCase
TestToldService.settings = settings(max_examples=40, stateful_step_count=40)


def insert(tree: RadixTree, keys: list[tuple[int, ...]], scope: CacheScope = COMMON_SCOPE) -> Node:
    node = tree.match_prefix(scope, [], 0)
    tree.lock(node)
    for page, key in enumerate(keys):
        node = tree.insert(node, key, page)
    return node


def test_pages_in_a_row_are_one_event_and_the_first_has_no_parent() -> None:
    log = KVEventLog("model")
    tree = RadixTree(2, log)
    first = insert(tree, [(1, 2), (3, 4)])
    insert(tree, [(1, 2), (5, 6)])
    one, two = log.take()
    assert isinstance(one, PagesStored) and isinstance(two, PagesStored)
    assert (one.parent, one.tokens, one.digests[1]) == (None, [1, 2, 3, 4], first.digest)
    assert (two.parent, two.tokens) == (one.digests[0], [5, 6])
    assert log.take() == []


def test_a_page_has_the_same_digest_in_each_server_of_the_model_and_no_other_page_has_it() -> None:
    def digests(model: str, keys: list[tuple[int, ...]]) -> list[int]:
        log = KVEventLog(model)
        insert(RadixTree(2, log), keys)
        [stored] = log.take()
        assert isinstance(stored, PagesStored)
        return stored.digests

    assert digests("model", [(1, 2), (3, 4)]) == digests("model", [(1, 2), (3, 4)])
    several = [
        *digests("model", [(1, 2), (1, 2)]),
        *digests("other", [(1, 2), (1, 2)]),
        *digests("model", [(3, 4), (1, 2)]),
    ]
    assert len(set(several)) == 6
    assert all(0 < each < 1 << 64 for each in several)


def test_pages_of_an_adapter_agree_between_servers_and_collide_with_no_others() -> None:
    def digest(adapter: Adapter | None) -> int:
        log = KVEventLog("model")
        insert(RadixTree(2, log), [(1, 2)], CacheScope(adapter=adapter))
        [stored] = log.take()
        assert isinstance(stored, PagesStored)
        assert (stored.parent, stored.adapter) == (None, adapter and adapter.name)
        return stored.digests[0]

    def adapter(name: str, content: str, number: int = 1) -> Adapter:
        return Adapter(name, f"/{number}", number, number, content, 8, 8.0, 4)

    assert digest(adapter("sql", "a", 1)) == digest(adapter("sql", "a", 2))
    several = [None, adapter("sql", "a"), adapter("sql", "b"), adapter("law", "a")]
    assert len({digest(each) for each in several}) == 4


def test_pages_of_an_adapter_are_gone_when_the_next_load_has_its_name() -> None:
    log = KVEventLog("model")
    tree = RadixTree(2, log)
    old, new = (Adapter("sql", "/", load, load, "same", 8, 8.0, 4) for load in (1, 2))
    last = insert(tree, [(1, 2)], CacheScope(adapter=old))
    log.withdraw(old)
    tree.withdraw(old)
    tree.insert(last, (3, 4), 9)  # by a request that is still running
    stored, removed = log.take()
    assert isinstance(stored, PagesStored)
    assert removed == PagesRemoved(stored.digests)
    insert(tree, [(1, 2)], CacheScope(adapter=new))
    assert log.take() == [stored]


@pytest.mark.parametrize("scope", [CacheScope(salt="secret"), CacheScope("team"), CacheScope("team", "secret")])
def test_pages_of_a_salt_or_of_a_group_apart_are_told_to_nobody(scope: CacheScope) -> None:
    log = KVEventLog("model")
    tree = RadixTree(2, log)
    other = insert(tree, [(1, 2)])
    log.take()
    tree.unlock(insert(tree, [(1, 2), (3, 4)], scope))
    assert len(tree.evict(2)) == 2
    assert log.take() == []
    assert other.digest


def test_a_hidden_page_is_gone_with_all_behind_it_and_what_comes_behind_is_not_told() -> None:
    log = KVEventLog("model")
    tree = RadixTree(2, log)
    node = insert(tree, [(1, 2), (3, 4), (5, 6)])
    [stored] = log.take()
    assert isinstance(stored, PagesStored)
    assert node.parent is not None and node.parent.parent is not None
    tree.trust(node.parent.parent)
    tree.hide(COMMON_SCOPE, [1, 2, 3, 4, 5, 6])
    assert log.take() == [PagesRemoved([stored.digests[2], stored.digests[1]])]
    tree.insert(node, (7, 8), 9)
    assert log.take() == []
    again = insert(tree, [(1, 2), (3, 4)])
    assert again.digest == stored.digests[1]
    assert log.take() == [PagesStored(stored.digests[0], [again.digest], [3, 4])]


def test_a_tree_that_becomes_empty_is_one_event_whatever_was_to_be_told() -> None:
    log = KVEventLog("model")
    tree = RadixTree(2, log)
    tree.unlock(insert(tree, [(1, 2), (3, 4)]))
    tree.evict(2)
    assert log.take() == [PagesCleared()]


def test_who_takes_the_events_is_called_once_for_many() -> None:
    calls: list[None] = []
    log = KVEventLog("model", lambda: calls.append(None))
    tree = RadixTree(2, log)
    tree.unlock(insert(tree, [(1, 2), (3, 4)]))
    tree.evict(1)
    assert len(calls) == 1
    log.take()
    tree.evict(1)
    assert len(calls) == 2
