"""The anchors that lose their snapshots to marks."""

from collections.abc import Iterator
from itertools import count

from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.holdings import Holdings
from numaserve.server.scheduler.cache.kv_events import KVEventLog, PagesCleared, PagesRemoved, PagesStored
from numaserve.server.scheduler.cache.mark_kinds import KindUse, MarkKind
from numaserve.server.scheduler.cache.marks import Anchor, Mark
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope

PREFIX, PROMPT, OUTPUT, LONG = MarkKind.PREFIX, MarkKind.PROMPT, MarkKind.OUTPUT, MarkKind.LONG


class Cache:
    """A tree of pages of one token, and its anchors."""

    def __init__(self, snapshots: int, log: KVEventLog | None = None) -> None:
        self.holdings = Holdings(snapshots)
        self.anchors = Anchors(1, self.holdings, log)
        self.tree = RadixTree(1, on_removed=self.anchors.removed)
        self._pages: Iterator[int] = count()

    @property
    def num_free(self) -> int:
        """The number of free snapshots."""
        assert self.holdings.snapshots is not None
        return self.holdings.snapshots.num_free

    def begin_step(self) -> None:
        """Begin a plan."""
        assert self.holdings.snapshots is not None
        self.holdings.snapshots.begin_step()

    def node(self, keys: list[int], scope: CacheScope = COMMON_SCOPE) -> Node:
        """The node of these keys, unlocked."""
        node = self.tree.match_prefix(scope, keys, len(keys))
        self.tree.lock(node)
        for key in keys[node.depth :]:
            node = self.tree.insert(node, (key,), next(self._pages))
        self.tree.unlock(node)
        return node

    def mark(self, keys: list[int], kind: MarkKind = PROMPT, scope: CacheScope = COMMON_SCOPE) -> Anchor | None:
        """Make an anchor in a plan of its own; None if there is no snapshot."""
        self.begin_step()
        holding = self.anchors.take(kind)
        node = self.node(keys, scope)
        if holding is None:
            self.anchors.made(node, kind)
            return None
        return self.anchors.give(Mark(len(keys), holding, kind), node, keys, keys, sound=True)

    def find(self, keys: list[int]) -> Anchor | None:
        """Look a prompt up in a plan of its own, and go on from its anchor."""
        self.begin_step()
        matched = self.tree.match_prefix(COMMON_SCOPE, keys, len(keys))
        self.anchors.looked_up(matched)
        return self.anchors.use(self.anchors.deepest(matched))

    def anchored(self) -> list[int]:
        """The last keys of all anchors' nodes, least recently used first."""
        return [node.key[0] for node in self.anchors._of if isinstance(node.key[0], int)]


def test_only_the_anchor_that_is_used_is_refreshed() -> None:
    cache = Cache(3)
    for keys in ([1], [1, 2], [3]):
        cache.mark(keys)
    cache.find([1, 2])
    assert cache.anchored() == [1, 3, 2]
    cache.mark([4])
    assert cache.anchored() == [3, 2, 4]


def test_a_turn_that_has_left_a_mark_gives_up_the_one_from_which_it_began() -> None:
    cache = Cache(2)
    cache.mark([1])
    cache.mark([2])
    began = cache.find([1])
    assert began is not None
    cache.anchors.superseded(began)
    cache.mark([1, 1])
    assert cache.anchored() == [2, 1]


def test_an_anchor_that_several_have_used_is_not_given_up() -> None:
    cache = Cache(2)
    cache.mark([1])
    cache.mark([2])
    for _ in range(2):
        began = cache.find([1])
        assert began is not None
    assert began.kind is PREFIX
    cache.anchors.superseded(began)
    cache.mark([3])
    assert cache.anchored() == [1, 3]


def test_marks_of_a_long_prompt_take_free_snapshots_only() -> None:
    cache = Cache(1)
    cache.mark([1])
    assert cache.mark([2], LONG) is None
    assert cache.mark([3], OUTPUT) is not None


def test_a_snapshot_that_a_plan_names_is_not_given_out_by_it() -> None:
    cache = Cache(2)
    cache.mark([1])
    cache.mark([2])
    cache.find([1])  # in this plan
    assert cache.anchors.take(PROMPT) is not None
    assert cache.anchored() == [1]
    assert cache.anchors.take(PROMPT) is None


def test_a_snapshot_of_this_plan_whose_page_is_evicted_is_free_in_the_next() -> None:
    cache = Cache(1)
    cache.mark([1])
    assert len(cache.tree.evict(1)) == 1
    assert cache.num_free == 1
    assert cache.anchors.take(PROMPT) is None
    cache.begin_step()
    assert cache.anchors.take(PROMPT) is not None


def test_nothing_is_given_to_a_page_that_is_hidden() -> None:
    cache = Cache(2)
    node = cache.node([1, 2])
    cache.tree.hide(COMMON_SCOPE, [1, 2])
    cache.tree.lock(node)
    below = cache.tree.insert(node, (3,), 100)
    for each in (node, below):
        holding = cache.anchors.take(PROMPT)
        assert holding is not None
        assert cache.anchors.give(Mark(2, holding, PROMPT), each, [1, 2, 3], [1, 2, 3], sound=True) is None
    assert cache.num_free == 2


def test_the_kind_of_mark_that_nobody_finds_goes_first() -> None:
    cache = Cache(40)
    for session in range(20):
        cache.mark([session, 1], PROMPT)
        cache.mark([session, 1, 2], OUTPUT)
    cache.mark([100], OUTPUT)  # there is no reason yet to prefer one: the oldest goes
    assert cache.anchored()[0] == 2
    for session in range(1, 20):
        cache.find([session, 1, 2])
    cache.mark([101], OUTPUT)
    assert sum(node.depth == 2 for node in cache.anchors._of) == 18
    for number in range(18):
        cache.mark([200 + number], PROMPT)
    assert sum(node.depth == 2 for node in cache.anchors._of) == 0
    assert sum(node.depth == 3 for node in cache.anchors._of) == 20
    assert cache.mark([300], OUTPUT) is not None
    assert sum(node.depth == 3 for node in cache.anchors._of) == 20


def test_a_kind_that_is_rarely_found_takes_nothing_from_others() -> None:
    cache = Cache(20)
    for session in range(20):
        cache.mark([session], PROMPT)
    for session in range(20):
        cache.anchors.made(cache.node([session, 1]), OUTPUT)
        cache.find([session])
    assert cache.mark([100], OUTPUT) is None
    for session in range(20):  # their marks are found now, and would have been
        cache.find([session, 1])
    assert cache.mark([101], OUTPUT) is not None


def test_old_marks_count_for_less() -> None:
    use = KindUse()
    for _ in range(256):
        use.made(PROMPT)
        use.found(PROMPT)
        use.made(OUTPUT)
    assert use.is_rare(OUTPUT) and not use.is_rare(PROMPT)
    for _ in range(600):
        use.made(PROMPT)
        use.made(OUTPUT)
        use.found(OUTPUT)
    assert use.is_rare(PROMPT) and not use.is_rare(OUTPUT)


def test_marks_for_several_are_never_rare() -> None:
    use = KindUse()
    for _ in range(100):
        use.made(PREFIX)
        use.made(PROMPT)
        use.found(PROMPT)
    assert not use.is_rare(PREFIX)


def test_pages_are_reported_up_to_the_deepest_anchor() -> None:
    log = KVEventLog("model")
    cache = Cache(2, log)
    cache.node([1, 2, 3])
    assert log.take() == []
    cache.mark([1, 2])
    [stored] = log.take()
    assert isinstance(stored, PagesStored) and stored.tokens == [1, 2]
    cache.mark([1, 2, 3])
    [third] = log.take()
    assert isinstance(third, PagesStored) and (third.parent, third.tokens) == (stored.digests[1], [3])
    cache.mark([1, 4])  # in the place of that after the second page
    [fourth] = log.take()
    assert isinstance(fourth, PagesStored) and fourth.tokens == [4]
    cache.anchors.drop(cache.node([1, 2, 3]))
    assert log.take() == [PagesRemoved([third.digests[0], stored.digests[1]])]
    cache.anchors.drop(cache.node([1, 4]))
    assert log.take() == [PagesCleared()]


def test_nothing_is_reported_of_another_scope() -> None:
    log = KVEventLog("model")
    cache = Cache(2, log)
    secret = CacheScope(salt="secret")
    cache.mark([1, 2], scope=secret)
    cache.anchors.drop(cache.node([1, 2], secret))
    assert log.take() == []
