"""The radix tree against a dictionary of prefixes."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope

from tests.support.scheduler_integrity import check_tree

PAGE = 2
Prefix = tuple[CacheScope, tuple[tuple[int, ...], ...]]  # scope, and the tokens page by page

scopes = st.builds(CacheScope, st.sampled_from(["", "team"]), st.sampled_from(["", "tenant"]))
pages_of_tokens = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=4)


def insert_all(tree: RadixTree, scope: CacheScope, keys: list[tuple[int, ...]], first_page: int) -> Node:
    node = tree.match_prefix(scope, [], 0)
    tree.lock(node)
    for index, key in enumerate(keys):
        node = tree.insert(node, key, first_page + index)
    return node


class TreeAgainstDictionary(RuleBasedStateMachine):
    """The oracle maps each cached prefix to its page, and to the time at which its last holder let it go."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree(PAGE)
        self.pages: dict[Prefix, int] = {}
        self.let_go: dict[Prefix, int] = {}
        self.locks: Counter[Prefix] = Counter()
        self.clock = 0
        self.next_page = 0

    @rule(target=held, scope=scopes, keys=pages_of_tokens, odd=st.booleans(), limit=st.integers(0, 5))
    def acquire(self, scope: CacheScope, keys: list[tuple[int, ...]], odd: bool, limit: int) -> tuple[Node, Prefix]:
        tokens = [token for key in keys for token in key] + [1] * odd
        node = self.tree.match_prefix(scope, tokens, limit)
        depth = max(n for n in range(min(len(keys), limit) + 1) if n == 0 or (scope, tuple(keys[:n])) in self.pages)
        found = (scope, tuple(keys[:depth]))
        assert self.tree.path_pages(node) == [self.pages[scope, found[1][: n + 1]] for n in range(depth)]
        self.tree.lock(node)
        self.locks.update(self.path(found))
        return node, found

    @rule(target=held, holder=consumes(held), key=st.tuples(st.integers(0, 1), st.integers(0, 1)))
    def extend(self, holder: tuple[Node, Prefix], key: tuple[int, ...]) -> tuple[Node, Prefix]:
        node, (scope, keys) = holder
        prefix = (scope, (*keys, key))
        child = self.tree.insert(node, key, self.next_page)
        assert child.page == self.pages.setdefault(prefix, self.next_page)
        self.next_page += 1
        self.locks[prefix] += 1
        return child, prefix

    @rule(holder=consumes(held))
    def release(self, holder: tuple[Node, Prefix]) -> None:
        node, prefix = holder
        self.tree.unlock(node)
        self.locks.subtract(self.path(prefix))
        self.clock += 1
        self.let_go.update({step: self.clock for step in self.path(prefix) if self.locks[step] == 0})

    @precondition(lambda self: self.pages)
    @rule()
    def evict_one(self) -> None:
        parents = {(scope, keys[:-1]) for scope, keys in self.pages}
        leaves = [prefix for prefix in self.pages if self.locks[prefix] == 0 and prefix not in parents]
        oldest = min((self.let_go[prefix] for prefix in leaves), default=None)
        evicted = self.tree.evict(1)
        assert len(evicted) == bool(leaves)
        for page in evicted:
            gone = next(prefix for prefix, cached in self.pages.items() if cached == page)
            assert gone in leaves
            assert self.let_go[gone] == oldest
            del self.pages[gone]

    @rule(count=st.integers(0, 4))
    def evict_some(self, count: int) -> None:
        unlocked = sum(self.locks[prefix] == 0 for prefix in self.pages)
        evicted = set(self.tree.evict(count))
        assert len(evicted) == min(count, unlocked)
        assert all(self.locks[prefix] == 0 for prefix, page in self.pages.items() if page in evicted)
        self.pages = {prefix: page for prefix, page in self.pages.items() if page not in evicted}

    @invariant()
    def tree_and_dictionary_agree(self) -> None:
        nodes = {self.prefix(node): node for node in self.tree.nodes() if node.parent is not None}
        assert {prefix: node.page for prefix, node in nodes.items()} == self.pages
        roots = {node.scope: node for node in self.tree.nodes() if node.parent is None}
        locks = {nodes.get(prefix) or roots[prefix[0]]: count for prefix, count in self.locks.items() if count}
        check_tree(self.tree, Counter(locks))

    @staticmethod
    def path(prefix: Prefix) -> list[Prefix]:
        scope, keys = prefix
        return [(scope, keys[:depth]) for depth in range(len(keys) + 1)]

    @staticmethod
    def prefix(node: Node) -> Prefix:
        keys: list[tuple[int, ...]] = []
        step: Node | None = node
        while step is not None and step.parent is not None:
            keys.insert(0, step.key)
            step = step.parent
        return node.scope, tuple(keys)


TestTreeAgainstDictionary = TreeAgainstDictionary.TestCase
TestTreeAgainstDictionary.settings = settings(max_examples=100, stateful_step_count=40)


def test_equal_tokens_of_two_scopes_never_share_pages() -> None:
    tree = RadixTree(PAGE)
    scopes = [CacheScope(group, salt) for group in ("", "alice", "bob") for salt in ("", "alice", "bob", "\0bob")]
    for page, scope in enumerate(scopes):
        assert tree.match_prefix(scope, [1, 2, 3], max_pages=9).depth == 0
        insert_all(tree, scope, [(1, 2)], first_page=page)
    assert [tree.match_prefix(scope, [1, 2, 3], max_pages=9).page for scope in scopes] == list(range(len(scopes)))


def test_a_page_that_two_sequences_computed_is_kept_once() -> None:
    tree = RadixTree(PAGE)
    first = insert_all(tree, COMMON_SCOPE, [(1, 2)], first_page=3)
    second = insert_all(tree, COMMON_SCOPE, [(1, 2)], first_page=4)
    assert first is second
    assert (tree.num_pages, second.page, second.locks) == (1, 3, 2)


def test_a_locked_page_keeps_its_whole_prefix_from_eviction() -> None:
    tree = RadixTree(PAGE)
    deep = insert_all(tree, COMMON_SCOPE, [(1, 2), (3, 4)], first_page=0)
    tree.unlock(insert_all(tree, COMMON_SCOPE, [(1, 2), (5, 6)], first_page=10))
    assert tree.evict(9) == [11]
    tree.unlock(deep)
    assert tree.evict(9) == [1, 0]


def test_a_salt_leaves_nothing_behind_when_its_last_page_goes() -> None:
    tree = RadixTree(PAGE)
    tree.unlock(insert_all(tree, CacheScope(salt="once"), [(1, 2)], first_page=0))
    tree.unlock(insert_all(tree, CacheScope(salt="empty"), [], first_page=0))
    tree.evict(1)
    assert list(tree.nodes()) == []


def test_only_full_pages_enter_the_tree() -> None:
    tree = RadixTree(PAGE)
    root = insert_all(tree, COMMON_SCOPE, [], first_page=0)
    with pytest.raises(ValueError, match="full page"):
        tree.insert(root, (1,), 0)
