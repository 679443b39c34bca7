"""The holders of pages: the free list, the radix tree and the running sequences."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from typing import NamedTuple, TypeVar

from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.holdings import Holdings
from numaserve.server.scheduler.cache.keys import PageKey
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.cache.page_allocator import PageAllocator
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree, ancestor
from numaserve.server.scheduler.cache.window_pages import WindowPages
from numaserve.server.scheduler.errors import SchedulerIntegrityError
from numaserve.server.scheduler.images import outside_images
from numaserve.server.scheduler.marking import Marking
from numaserve.server.scheduler.sequence import AnchorStats, SchedulerConfig, Sequence, SnapshotStats, WindowStats
from numaserve.server.scheduler.window_tables import WindowTables
from numaserve.workers.interface.protocol import StateWork
from numaserve.workers.interface.windows import WindowTable

_Key = TypeVar("_Key")


class FoundPage(NamedTuple):
    """A page of memory with full content, for the radix tree."""

    key: PageKey
    number: int
    tokens: tuple[int, ...] | None  # where the key has other content among them


class TrustedPrefix(NamedTuple):
    """The pages up to `node`. A sequence could begin after the first `usable` of them."""

    node: Node
    usable: int


class KVCache:
    """The pages. Each is in exactly one of: the free list, the radix tree, one running sequence."""

    def __init__(self, config: SchedulerConfig, log: KVEventLog | None = None) -> None:
        self._config = config
        self.log = log
        snapshots = config.capacity.num_snapshots
        self.allocator = PageAllocator(config.capacity.num_pages)
        self.anchors: Anchors | None = None  # None: every node is one
        self.windows: WindowTables | None = None  # None: there is only the common page table
        self._marking: Marking | None = None
        self._holdings = Holdings(snapshots, [_window_pages(config, table) for table in config.window_tables])
        if config.enable_prefix_cache and (snapshots or config.windows):
            self.anchors = Anchors(config.page_size, self._holdings, log)
        if config.windows:
            self.windows = WindowTables(config, self._holdings.windows, self.anchors)
        if self.anchors is None:
            self.tree = RadixTree(config.page_size, log)
        else:
            self.tree = RadixTree(config.page_size, on_removed=self.anchors.removed)
            self._marking = Marking(config, self.tree, self.anchors, self.windows)
        self._fresh: set[Node] = set()  # pages and anchors that the plan in the making writes
        self.query_tokens = 0
        self.hit_tokens = 0
        self.anchor_hits = 0
        self.unanchored_tokens = 0
        # Of the disk tier: they are called with a sequence and a node of it, which was found or shown to be sound.
        self.on_found: Callable[[Sequence, Node], None] | None = None
        self.on_sound: Callable[[Sequence, Node], None] | None = None

    def on_sound_anchor(self, report: Callable[[Sequence, Node], None] | None) -> None:
        """Have `report` called with a sequence and a node of it, whose anchor is sound."""
        if self._marking is not None:
            self._marking.on_sound = report

    def begin_step(self, running: ListOf[Sequence]) -> None:
        """Begin a plan for running sequences: pages that earlier plans write may be shared from now on."""
        self._fresh.clear()
        if self._holdings.snapshots is not None:
            self._holdings.snapshots.begin_step()
        if self.windows is not None:
            self.windows.begin_step(running)

    def admit(self, seq: Sequence, headroom: int) -> bool:
        """Give `seq` the pages of its longest cached prefix and new ones for all its other tokens.

        False, and nothing changed, when that would leave fewer than `headroom` pages to be had, or when the prefix is
        being computed by the very plan in the making: one step later it can be shared, which is cheaper than
        computing it twice.
        """
        matched = self._matched(seq)
        node = self._usable(seq, matched)
        if node in self._fresh:
            return False
        self.tree.lock(node)
        need = self._need(seq, node)
        if self.num_available < need + headroom:
            self.tree.unlock(node)
            return False
        seq.node = node
        seq.pages = self.tree.path_pages(node) + self.take(need)
        seq.position.suspended(node.depth * self._config.page_size)
        self._count_lookup(seq, matched)
        if self._marking is not None:
            self._marking.admitted(seq, node, matched)
        if self.windows is not None:
            anchor = None if self.anchors is None else self.anchors.at(node)
            self.windows.began(seq, () if anchor is None else anchor.holding.tails)
        if self.on_found is not None and node.depth:
            self.on_found(seq, node)
        return True

    def count_to_retract(self, others: Iterable[Sequence], seq: Sequence, headroom: int) -> int | None:
        """Return how many of `others`, from the first on, must give up their pages for `admit`; None if all are too
        few.

        It is tried: what they share with those who stay, or with `seq`, does not become free, and cannot be added up.
        """
        node = self._usable(seq, self._matched(seq))
        self.tree.lock(node)
        need = self._need(seq, node) + headroom
        unlocked: list[Node] = []
        own = 0  # pages of theirs that are not the tree's
        try:
            for each in others:
                if self.num_available + own >= need - len(unlocked):
                    return len(unlocked)
                shared = _locked_node(each)
                self.tree.unlock(shared)
                unlocked.append(shared)
                own += len(each.pages) - shared.depth
            return len(unlocked) if self.num_available + own >= need - len(unlocked) else None
        finally:
            for shared in unlocked:
                self.tree.lock(shared)
            self.tree.unlock(node)

    def can_grow(self, count: int) -> bool:
        """Return whether `count` sequences find a page each."""
        return self.num_available >= count

    def grow(self, seq: Sequence) -> list[int] | None:
        """A page for position `computed` where it lacks one: [page], else []; None when there is none to be had."""
        if seq.position.computed < len(seq.pages) * self._config.page_size:
            return []
        if self.num_available == 0:
            return None
        pages = self.take(1)
        seq.pages += pages
        return pages

    def grow_for_drafts(self, seq: Sequence, drafts: int, headroom: int) -> tuple[list[int], int]:
        """Return pages for positions after `computed`, and the number of draft tokens that find a place.

        They are taken only as far as `headroom` pages remain available: no sequence gives way for draft tokens.
        """
        size = self._config.page_size
        lacking = -(-(seq.position.computed + 1 + drafts) // size) - len(seq.pages)
        pages = self.take(max(0, min(lacking, self.num_available - headroom)))
        seq.pages += pages
        return pages, min(drafts, len(seq.pages) * size - seq.position.computed - 1)

    def state_work(self, seq: Sequence, length: int, index: int) -> list[StateWork]:
        """Return the entry of a sequence of the plan in the making, for the snapshots in its next `length` known
        positions; none where there are none."""
        return [] if self._marking is None else self._marking.plan(seq, length, index)

    def publish(self, seq: Sequence) -> None:
        """Move the own pages that are full and whose tokens are known to the tree, to be shared by later plans.

        They are written only when the plan runs. That is soon enough: workers run plans in the order in which they are
        made, so a sequence that finds the pages in the tree reads them in a later plan.
        """
        node = _locked_node(seq)
        full = self._num_full(seq)
        while node.depth < full:
            key = self._part(seq.keys, node.depth)
            if key in node.children:
                # Another sequence computed the same page at the same time. Ours stays ours until the end: the worker's
                # page table only grows, and to lock the other one for nothing could lock up all of a small cache.
                break
            node = self._insert(node, seq)
            self._fresh.add(node)
        seq.node = node
        if self._marking is not None:
            self._fresh.update(self._marking.published(seq))

    # The page table of a sequence when it is released (finished, aborted or retracted), and what becomes of it:
    #
    #     0 ............ node.depth ............. full ..................... len(pages)
    #     |  the tree's, | own, full, tokens known |  own: partly written, or  |
    #     |  locked by us| and computed            |  of unknown tokens, or unused |
    #     |              |                         |                           |
    #     |  unlock      | to the tree; freed if   |  freed                    |
    #     |              | the tree has that page  |                           |
    #
    # `full` counts a page when every position in it is planned (`computed`) and every token in it known: the token
    # that a plan in flight samples may be computed by the next plan before the front end has seen its id. Where there
    # is a draft model, that has read it, too.
    def release(self, seq: Sequence) -> None:
        """Take all pages from `seq`. They may be given out again at once, see `Scheduler` on plans in flight."""
        node = _locked_node(seq)
        full = self._num_full(seq)
        duplicates = []
        while node.depth < full:
            page = seq.pages[node.depth]
            node = self._insert(node, seq)
            if node.page != page:
                duplicates.append(page)
        if self._marking is not None:
            self._marking.released(seq, node)
        if self.windows is not None:
            self.windows.released(seq)
        self.allocator.free(duplicates)
        self.allocator.free(seq.pages[full:])
        self.tree.unlock(node)
        seq.node = None
        seq.pages = []
        seq.position.suspended()

    def free_planned(self, seq: Sequence) -> None:
        """Free the pages of a whole prompt. No later plan reads them, so they may be given out at once, like those of
        a sequence that ends."""
        self.allocator.free(seq.pages)
        seq.pages = []

    def trust(self, seq: Sequence, end: int) -> None:
        """Mark pages as sound: position `end` - 1 of `seq` gave numbers as logits, and so did all that it sees."""
        node = _locked_node(seq)
        while node.parent is not None and node.depth * self._config.page_size > end:
            node = node.parent
        self.tree.trust(node)
        if self._marking is not None:
            self._marking.trust(seq, end)
        if self.on_sound is not None:
            self.on_sound(seq, node)

    def forget(self, seq: Sequence) -> None:
        """Let nobody find pages of a sequence whose logits were not numbers, but for those that others have had numbers
        from: one client's prompt must not cost all others the prefix that they share."""
        self.tree.hide(seq.request.scope, seq.keys)
        if self.anchors is not None:
            pages = len(seq.keys) // self._config.page_size
            self.anchors.drop_unsound(self.tree.match_prefix(seq.request.scope, seq.keys, pages))

    def withdraw(self, adapter: Adapter) -> None:
        """Let nobody find pages of an adapter that serves its last requests; they are the first to be evicted."""
        if self.log is not None:
            self.log.withdraw(adapter)
        self.tree.withdraw(adapter)

    def forget_adapter(self, adapter: Adapter) -> None:
        """Forget a withdrawn adapter, which no request uses any more, with the pages that its last requests left."""
        self.tree.withdraw(adapter)
        if self.log is not None:
            self.log.forget(adapter)

    def flush(self) -> None:
        """Free every page that no running sequence uses."""
        self.allocator.free(self.tree.evict(self.tree.num_evictable))

    @property
    def num_available(self) -> int:
        """The number of pages that can be had now."""
        return self.allocator.num_free + self.tree.num_evictable

    def snapshot_stats(self, running: Iterable[Sequence]) -> SnapshotStats | None:
        """Return counters of snapshots, while these sequences run; None without snapshots."""
        if self.anchors is None or self._holdings.snapshots is None:
            return None
        active = sum(each.marks.num_held for each in running if each.marks is not None)
        return SnapshotStats(self._holdings.snapshots.num_free, len(self.anchors), active)

    def window_stats(self) -> WindowStats | None:
        """Return counters of window pages; None without window tables."""
        return None if self.windows is None else self.windows.stats()

    def anchor_stats(self) -> AnchorStats | None:
        """Return counters of anchors; None where every node is one."""
        return None if self.anchors is None else AnchorStats(self.anchor_hits, self.unanchored_tokens)

    def take(self, count: int) -> list[int]:
        """Return pages, of which as many are available."""
        self.allocator.free(self.tree.evict(count - self.allocator.num_free))
        return self.allocator.allocate(count)

    def trusted_prefix(self, seq: Sequence) -> TrustedPrefix:
        """Return what the tree has of the prefix of `seq`, as far as answered steps have shown it to be sound."""
        node = self._matched(seq)
        while node.parent is not None and not node.trusted:
            node = node.parent
        return TrustedPrefix(node, self._usable(seq, node).depth)

    def adopt(self, parent: Node, page: FoundPage) -> Node:
        """Give the tree a page after those of `parent`, as `RadixTree.insert` does; it is free if the tree has one."""
        node = self.tree.insert(parent, page.key, page.number, page.tokens)
        if node.page != page.number:
            self.allocator.free([page.number])
        return node

    def found_page(self, seq: Sequence, depth: int, number: int) -> FoundPage:
        """Return the page of `seq` after `depth` others, for a page of memory of that number."""
        tokens = None if seq.keys is seq.tokens else self._part(seq.tokens, depth)
        return FoundPage(self._part(seq.keys, depth), number, tokens)

    def reusable(self, seq: Sequence) -> int:
        """Return the number of tokens of `seq` that would not be computed, were it admitted now."""
        return self._usable(seq, self._matched(seq)).depth * self._config.page_size

    def _matched(self, seq: Sequence) -> Node:
        return self.tree.match_prefix(seq.request.scope, seq.keys, self.max_cached_pages(seq))

    def _usable(self, seq: Sequence, matched: Node) -> Node:
        """Return the deepest node after which a sequence that has the pages of `matched` can begin: not within an image
        whose tokens see each other."""
        while True:
            node = matched if self.anchors is None else self.anchors.deepest(matched)
            matched = ancestor(node, self.whole_pages(seq, node.depth))
            if matched is node:
                return node

    def whole_pages(self, seq: Sequence, pages: int) -> int:
        """Return the number of the first `pages` of a sequence that end in no image whose rows must be whole in a
        step."""
        if not self._config.whole_images:
            return pages
        size = self._config.page_size
        return outside_images(seq.request.images, pages * size, size) // size

    def _need(self, seq: Sequence, cached: Node) -> int:
        """Return the number of new pages that all tokens take after the cached ones."""
        return -(-len(seq.tokens) // self._config.page_size) - cached.depth

    def max_cached_pages(self, seq: Sequence) -> int:
        """Return the most pages that `seq` may find in the cache."""
        if not self._config.enable_prefix_cache:
            return 0
        # At least one token is computed, since a sample needs the logits of the last position.
        positions = len(seq.tokens) - 1
        if seq.request.prompt_logprobs:  # and these need the logits of every position whose row has not been asked for
            positions = min(positions, seq.position.logprob_rows_planned)
        return positions // self._config.page_size

    def _num_full(self, seq: Sequence) -> int:
        if not self._config.enable_prefix_cache:
            return 0
        at = seq.position
        read = at.drafter_read if self._config.worker_drafter else at.computed
        return min(at.computed, read, len(seq.tokens)) // self._config.page_size

    def _insert(self, parent: Node, seq: Sequence) -> Node:
        page = self.found_page(seq, parent.depth, seq.pages[parent.depth])
        return self.tree.insert(parent, page.key, page.number, page.tokens)

    def _part(self, keys: ListOf[_Key], index: int) -> tuple[_Key, ...]:
        size = self._config.page_size
        return tuple(keys[index * size : (index + 1) * size])

    def _count_lookup(self, seq: Sequence, matched: Node) -> None:
        # A resumed sequence finds its own pages again: no merit of the cache, and its client has the number already.
        if seq.cached_tokens is None:
            seq.cached_tokens = seq.position.computed
            if self.anchors is not None:
                self.anchors.looked_up(matched)
            if self._config.enable_prefix_cache and not seq.request.prompt_logprobs:
                self.query_tokens += len(seq.tokens)
                self.hit_tokens += seq.position.computed
                self.anchor_hits += self.anchors is not None and seq.position.computed > 0
                self.unanchored_tokens += matched.depth * self._config.page_size - seq.position.computed


def _window_pages(config: SchedulerConfig, table: WindowTable) -> WindowPages:
    least = table.window.least_pages(
        config.max_running, config.shared_step_tokens, config.max_drafts, config.page_layout
    )
    return WindowPages(table.num_pages, table.num_pages - least)


def _locked_node(seq: Sequence) -> Node:
    if seq.node is None:
        raise SchedulerIntegrityError(f"sequence {seq.request_id!r} has no pages: its state is {seq.state.value}")
    return seq.node
