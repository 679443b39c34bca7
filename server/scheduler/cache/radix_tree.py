"""Cached prefixes: a tree of full pages, found by the keys of their positions.

A node is one page. Edges of several pages (the textbook radix tree) would save a pointer hop per 32 tokens, but would
have to be split when prompts diverge and when their cold end is evicted, both while sequences hold them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.keys import Key, PageKey
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.errors import SchedulerIntegrityError


class Node:
    """One full page of tokens after those of `parent`. A root (depth 0) has no page and stands for one scope."""

    __slots__ = (
        "children",
        "depth",
        "digest",
        "disk_digest",
        "hidden",
        "key",
        "locks",
        "page",
        "parent",
        "scope",
        "trusted",
    )

    def __init__(self, parent: Node | None, scope: CacheScope, key: PageKey = (), page: int = -1) -> None:
        self.parent = parent
        self.scope = scope
        self.key = key
        self.page = page
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[PageKey, Node] = {}
        self.locks = 0
        self.trusted = False  # logits that are numbers have come of it, and so of its parents
        self.hidden: bool = parent is not None and parent.hidden  # no prompt can find it
        self.disk_digest = b""  # its name on disk; empty: it was not offered to the disk tier
        self.digest = 0  # its name in the log of events; 0: neither it nor its children are in the log


class RadixTree:
    """Prefixes of `page_size`-token pages, one root per scope, evicted least recently used first.

    Children are found by the tuple of their keys. Keys of text are the tokens themselves, so that no hash collision can
    hand one prompt's pages to another.

    A lock on a node holds its whole path, so an unlocked node has only unlocked descendants. Nodes join `_evictable`
    when their last lock goes, a child before its parent: hence every node in it comes after all of its children, the
    first one is always a leaf, and eviction needs neither a heap nor a clock.

    A `log` records which pages of public scopes can be found. Pages of other scopes are in no event: a client with a
    salt or a cache group of its own does not want others to learn what is cached. Digests that name the scope were
    rejected: routers mostly index tokens alone, and would take such pages for everybody's.

    `on_removed` is called with each node that no prompt can find any more, children first.
    """

    def __init__(
        self, page_size: int, log: KVEventLog | None = None, on_removed: Callable[[Node], None] | None = None
    ) -> None:
        self.page_size = page_size
        self._log = log
        self._on_removed = on_removed
        self._roots: dict[CacheScope, Node] = {}
        self._evictable: OrderedDict[Node, None] = OrderedDict()
        self._num_pages = 0
        self._num_hidden = 0

    @property
    def num_pages(self) -> int:
        """The number of pages in the tree, locked or not."""
        return self._num_pages

    @property
    def num_evictable(self) -> int:
        """The number of pages that `evict` could give back now."""
        return len(self._evictable)

    def match_prefix(self, scope: CacheScope, keys: Sequence[Key], max_pages: int) -> Node:
        """The deepest node whose path is a prefix of `keys`, at most `max_pages` deep; a root when nothing matches.

        Changes nothing: lock the node before anything else is evicted.
        """
        size = self.page_size
        node = self._roots.get(scope) or self._new_root(scope)
        limit = min(max_pages, len(keys) // size)
        while node.depth < limit:
            start = node.depth * size
            child = node.children.get(tuple(keys[start : start + size]))
            if child is None:
                break
            node = child
        return node

    def insert(self, parent: Node, key: PageKey, page: int, tokens: tuple[int, ...] | None = None) -> Node:
        """The child of `parent` for `key`, made from `page` when there is none, with one more lock.

        `tokens` are the page's token ids, where the key has other content among them.

        The caller holds a lock on `parent`, and from now on holds the child in its place. When the child was there
        already, it has another page with the same content, and `page` remains the caller's.
        """
        if parent.locks == 0 or len(key) != self.page_size:
            raise ValueError("prefix tree: only a full page can be inserted, and only below a locked node")
        child = parent.children.get(key)
        if child is None:
            child = parent.children[key] = Node(parent, parent.scope, key, page)
            self._num_pages += 1
            if self._log is not None and parent.digest:
                child.digest = self._log.stored(parent.digest, key, tokens, adapter=parent.scope.adapter)
        elif child.locks == 0:
            del self._evictable[child]
        child.locks += 1
        return child

    def lock(self, node: Node) -> None:
        """Keep `node` and its path from being evicted, until the matching `unlock`."""
        step: Node | None = node
        while step is not None:
            if step.locks == 0:
                self._leave_evictable(step)
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock` (or `insert`); the path becomes the most recently used one where nobody else holds it."""
        step: Node | None = node
        while step is not None:
            step.locks -= 1
            if step.locks == 0:
                if step.parent is None:
                    self._drop_empty_root(step)
                else:
                    self._evictable[step] = None
            step = step.parent

    def evict(self, count: int) -> list[int]:
        """Forget up to `count` unlocked pages, least recently used first; the pages are the caller's."""
        pages = []
        for _ in range(min(count, len(self._evictable))):
            node, _ = self._evictable.popitem(last=False)
            parent = node.parent
            if parent is None or node.children:
                raise SchedulerIntegrityError("prefix tree: a node cannot be evicted before its children")
            del parent.children[node.key]
            self._num_pages -= 1
            pages.append(node.page)
            self._removed(node)
            if parent.parent is None and parent.locks == 0:
                self._drop_empty_root(parent)
        if self._log is not None and pages and not self._num_pages:
            self._log.cleared()  # in one event, in the place of one for each page
        return pages

    def trust(self, node: Node) -> None:
        """Mark `node` and its path as sound: their logits were numbers."""
        step: Node | None = node
        while step is not None and not step.trusted:
            step.trusted = True
            step = step.parent

    def hide(self, scope: CacheScope, keys: Sequence[Key]) -> None:
        """Let nobody find the first page of `keys` that is not trusted, nor any page after it.

        Who holds such pages keeps them. The others are the first to be evicted.
        """
        parent, node = None, self._roots.get(scope)
        while node is not None and (parent is None or node.trusted):
            start = node.depth * self.page_size
            parent, node = node, node.children.get(tuple(keys[start : start + self.page_size]))
        if parent is not None and node is not None:
            self._hide(parent, node)

    def withdraw(self, adapter: Adapter) -> None:
        """Let nobody find a page of `adapter` that is there now."""
        for root in [each for scope, each in self._roots.items() if scope.adapter is adapter]:
            root.digest = 0
            self._hide_below(root)

    def hide_all(self) -> None:
        """Let nobody find a page that is there now."""
        for root in list(self._roots.values()):
            self._hide_below(root)

    def path_pages(self, node: Node) -> list[int]:
        """The pages from the root to `node`, in token order."""
        pages = []
        while node.parent is not None:
            pages.append(node.page)
            node = node.parent
        pages.reverse()
        return pages

    def roots(self) -> Iterable[Node]:
        """The root of each scope."""
        return self._roots.values()

    def nodes(self) -> Iterator[Node]:
        """Every node, roots too, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _new_root(self, scope: CacheScope) -> Node:
        root = Node(None, scope)
        if self._log is not None:
            root.digest = self._log.root_of(scope)
        return root

    def _hide_below(self, root: Node) -> None:
        for child in list(root.children.values()):
            self._hide(root, child)

    def _hide(self, parent: Node, node: Node) -> None:
        if node.hidden:
            return
        # A key that no tokens have: locks, eviction and the count of pages need not know of it.
        self._num_hidden += 1
        del parent.children[node.key]
        node.key = (-self._num_hidden,)
        parent.children[node.key] = node
        hidden = [node]
        for step in hidden:
            step.hidden = True
            if step in self._evictable:
                self._evictable.move_to_end(step, last=False)  # and its children go before it
            hidden.extend(step.children.values())
        for step in reversed(hidden):  # children first, as they are evicted too
            self._removed(step)

    def _removed(self, node: Node) -> None:
        if self._log is not None and node.digest:
            self._log.removed(node.digest)
            node.digest = 0
        if self._on_removed is not None:
            self._on_removed(node)

    def _leave_evictable(self, node: Node) -> None:
        if node.parent is not None:
            del self._evictable[node]
        elif self._roots.setdefault(node.scope, node) is not node:
            raise ValueError("prefix tree: the node was removed after the prompt had matched it")

    def _drop_empty_root(self, root: Node) -> None:
        # Salts come from clients: a root that holds nothing must not stay, or the dictionary would grow without end.
        if not root.children:
            del self._roots[root.scope]


def ancestor(node: Node, depth: int) -> Node:
    """Return the node of that depth on the path to `node`, or `node` itself if it is not deeper."""
    while node.depth > depth and node.parent is not None:
        node = node.parent
    return node
