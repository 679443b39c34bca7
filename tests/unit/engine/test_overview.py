"""The shape of the tree of prefixes, as a view of the machine gets it."""

from numaserve.server.engine.overview import MAX_BRANCHES, MAX_PAGES_SEEN, Branch, Prefixes, prefixes_of
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE, CacheScope


def insert(tree: RadixTree, *tokens: int, salt: str = "", hold: bool = False) -> Node:
    """Each token a page."""
    node = tree.match_prefix(CacheScope(salt=salt), [], 0)
    tree.lock(node)
    for token in tokens:
        node = tree.insert(node, (token,), tree.num_pages)
    if not hold:
        tree.unlock(node)
    return node


def test_an_empty_tree_has_no_branch() -> None:
    assert prefixes_of(RadixTree(1)) == Prefixes(0, [], complete=True)


def test_pages_without_a_fork_are_one_branch() -> None:
    tree = RadixTree(1)
    insert(tree, 1, 2, 3)
    insert(tree, 1, 2, 4, 5)
    insert(tree, 9, salt="another")
    assert prefixes_of(tree) == Prefixes(
        6, [Branch(-1, 2, False), Branch(-1, 1, False), Branch(0, 1, False), Branch(0, 2, False)], complete=True
    )


def test_what_a_sequence_uses_is_told_apart_from_what_is_kept() -> None:
    tree = RadixTree(1)
    insert(tree, 1, 2, 3)
    tree.lock(tree.match_prefix(COMMON_SCOPE, [1, 2], 2))
    assert prefixes_of(tree).branches == [Branch(-1, 2, True), Branch(0, 1, False)]


def test_no_token_and_no_salt_is_told() -> None:
    tree = RadixTree(1)
    insert(tree, 424242, salt="a secret")
    assert "424242" not in str(prefixes_of(tree))
    assert "secret" not in str(prefixes_of(tree))


def test_a_wide_tree_is_cut() -> None:
    tree = RadixTree(1)
    for token in range(MAX_BRANCHES):
        insert(tree, 0, token)
    told = prefixes_of(tree)
    assert (told.pages, len(told.branches), told.complete) == (MAX_BRANCHES + 1, MAX_BRANCHES, False)
    smaller = RadixTree(1)
    for token in range(MAX_BRANCHES):
        insert(smaller, token)
    assert prefixes_of(smaller).complete


def test_a_deep_tree_is_cut() -> None:
    tree = RadixTree(1)
    insert(tree, *range(MAX_PAGES_SEEN + 5))
    insert(tree, -1)
    told = prefixes_of(tree)
    assert told.branches == [Branch(-1, MAX_PAGES_SEEN, False)]
    assert (told.pages, told.complete) == (MAX_PAGES_SEEN + 6, False)
