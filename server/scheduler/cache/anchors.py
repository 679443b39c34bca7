"""Anchors: what a sequence needs besides full pages to go on from a node of the radix tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from numaserve.server.scheduler.cache.holdings import Holding, Holdings, Tail
from numaserve.server.scheduler.cache.keys import Key
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.cache.mark_kinds import TURN_KINDS, KindUse, MarkKind
from numaserve.server.scheduler.cache.marks import Anchor, Mark
from numaserve.server.scheduler.cache.radix_tree import Node


class Anchors:
    """The anchors of a model with recurrent states or window tables: a `Holding` each, of a snapshot or window pages.

    A root needs no anchor: states before the first token are zeros, and no token is in a window. A sequence can begin
    after any other node only if the node has an anchor. In pure attention every node is an anchor, and no object of
    this class exists.

    **Holders.** A sequence takes a holding when its plan passes the position (a mark). If the tree has the page before
    the mark, the page's node gets the holding as soon as the plan is made, like the page itself. Workers run plans in
    order, and only a later plan lets another sequence begin there. An abort between these plans changes nothing, since
    a plan that was sent is run. If the tree lacks the page, the sequence holds the mark until its release, when its
    full pages join the tree. A rolling mark after a token that is not known is freed then.

    | event | snapshot | window pages |
    |---|---|---|
    | a mark | is taken, and stored in by the plan | get one more holder; nothing is copied |
    | a sequence begins from an anchor | is named by the plan, which loads it | have the sequence as a holder too |
    | a position passes a block, see `WindowTables` | | the sequence lets go of its pages before the window |
    | a mark lacks a snapshot | the anchor that goes first loses its snapshot | |
    | a sequence lacks a window page | | anchors go until one is free; then marks of running sequences do |
    | the page of a node is evicted, the cache flushed, the workers reset | is free | lose a holder |
    | pages are hidden (`RadixTree.hide`) | their anchors are dropped, and all above that are not sound | as snapshots |
    | a sequence is released | its last rolling mark goes to its node | its last full page becomes an anchor |

    A sequence that begins from an anchor makes it the most recently used; anchors above it do not move. The least
    recently used one goes first, however deep its node is. For window pages, anchors that share all of them with
    others are passed over: they would free none.

    Anchors of a kind that sequences rarely find (`KindUse`) go before others, and marks of such a kind take snapshots
    from no others. An anchor that one sequence alone has used is the first to go when this sequence has left a later
    one: otherwise the last turn of each session would keep its anchor at the cost of the next turn of another.

    Eviction by depth, shallow nodes first, was rejected: most sequences share the shallow ones. Refreshing the whole
    path was rejected too: it keeps anchors from which no sequence begins.

    The `log` has the pages of each path from a root to an anchor, and no others: no sequence can reuse a page without
    an anchor at or below it.
    """

    def __init__(self, page_size: int, holdings: Holdings, log: KVEventLog | None = None) -> None:
        self._page_size = page_size
        self._holdings = holdings
        self._log = log
        self._of: OrderedDict[Node, Anchor] = OrderedDict()  # least recently used first
        self._pinned: dict[Node, Anchor] = {}  # even if they were dropped meanwhile
        self._use = KindUse()
        self._unfound: dict[Node, MarkKind] = {}  # of marks that no sequence has found, with or without a holding

    def __len__(self) -> int:
        return len(self._of)

    def looked_up(self, node: Node) -> None:
        """Note that a sequence has found the pages up to `node`."""
        while node.parent is not None and node not in self._of and node not in self._unfound:
            node = node.parent
        kind = self._unfound.pop(node, None)
        if kind is not None:
            self._use.found(kind)

    def deepest(self, node: Node) -> Node:
        """Return the deepest node of the path to `node` after which a sequence can begin; a root if there is none."""
        while node.parent is not None and node not in self._of:
            node = node.parent
        return node

    def at(self, node: Node) -> Anchor | None:
        """Return the anchor of a node, which is not thereby used."""
        return self._of.get(node)

    def use(self, node: Node) -> Anchor | None:
        """Return the anchor of `node` for a sequence of the plan in the making, which begins there; None for a root."""
        anchor = self._of.get(node)
        if anchor is not None:
            self._of.move_to_end(node)
            if self._holdings.snapshots is not None:
                self._holdings.snapshots.name(anchor.holding.snapshot)
            anchor.kind = MarkKind.PREFIX if anchor.used else anchor.kind
            anchor.used = True
        return anchor

    def superseded(self, anchor: Anchor) -> None:
        """Note that the only sequence that began from an anchor has left a later one, where its next turn begins."""
        if self._of.get(anchor.node) is anchor and anchor.kind is not MarkKind.PREFIX:
            self._of.move_to_end(anchor.node, last=False)

    def take(self, kind: MarkKind, tails: tuple[Tail, ...] = ()) -> Holding | None:
        """Return a holding for a mark of the plan in the making, with these window pages; None if there is no snapshot
        to be had. A mark that divides a long prompt takes nothing from others."""
        snapshots = self._holdings.snapshots
        if kind is MarkKind.LONG and not self._holdings.has_free(tails):
            return None
        if snapshots is not None and not snapshots.can_take and kind is not MarkKind.LONG:
            victim = self._victim(lambda each: not snapshots.is_named(each.holding.snapshot), kind)
            if victim is not None:
                self.drop(victim.node)
        return self._holdings.take(tails)

    def pin(self, node: Node) -> Holding | None:
        """Keep what the anchor of `node` holds until `unpin`, and return it.

        None: the node has no sound anchor, or running sequences might lack its pages.
        """
        anchor = self._of.get(node)
        if anchor is None or not anchor.sound or node in self._pinned or not self._holdings.keep(anchor.holding.tails):
            return None
        self._pinned[node] = anchor
        return anchor.holding

    def unpin(self, node: Node) -> None:
        """Undo a `pin`."""
        anchor = self._pinned.pop(node)
        self._holdings.keep_no_longer(anchor.holding.tails)
        if self._of.get(node) is not anchor:
            self.free(anchor.holding)

    def take_empty(self, tails: Sequence[Tail]) -> Holding | None:
        """Return a holding for an anchor that is read from disk, with new pages in the place of those of `tails`; None
        if it cannot be had. It is kept until `filled`."""
        if not self._holdings.keep(tails):
            return None
        snapshots = self._holdings.snapshots
        if snapshots is not None and not snapshots.can_take:
            victim = self._victim(lambda each: not snapshots.is_named(each.holding.snapshot), MarkKind.PREFIX)
            if victim is not None:
                self.drop(victim.node)
        for window, (pool, tail) in enumerate(zip(self._holdings.windows, tails, strict=True)):
            while pool.num_free < len(tail.pages) and self.give_up_pages(window):
                pass
        holding = self._holdings.take_empty(tails)
        if holding is None:
            self._holdings.keep_no_longer(tails)
        return holding

    def filled(self, holding: Holding) -> None:
        """Let a holding of `take_empty` be given up again: it was given to a node, or is to be freed."""
        self._holdings.keep_no_longer(holding.tails)

    def moved(self, holding: Holding, tails: tuple[Tail, ...]) -> Holding:
        """Return the holding of a mark that moves on to a later position."""
        return self._holdings.moved(holding, tails)

    def give_up_pages(self, window: int) -> bool:
        """Drop the anchor that goes first for pages of a window table. False if there is none."""
        pool = self._holdings.windows[window]
        victim = self._victim(lambda each: pool.frees_any(each.holding.tails[window].pages))
        victim = victim or next((each for each in self._of.values() if each.node not in self._pinned), None)
        if victim is not None:
            self.drop(victim.node)
        return victim is not None

    def made(self, node: Node, kind: MarkKind) -> None:
        """Count a mark at `node`, even if it was left out for lack of a snapshot."""
        if not node.hidden and node.parent is not None and node not in self._of and node not in self._unfound:
            self._unfound[node] = kind
            self._use.made(kind)

    def give(self, mark: Mark, node: Node, tokens: Sequence[int], keys: Sequence[Key], *, sound: bool) -> Anchor | None:
        """Make a mark the anchor of `node`. `tokens` and `keys` are those of a sequence that has the node's page.

        Free what it holds and return None where the node has an anchor, or cannot be found any more.
        """
        if node.hidden or node.parent is None or node in self._of:
            self.free(mark.holding)
            return None
        self.made(node, mark.kind)
        anchor = self._of[node] = Anchor(node, mark.holding, mark.kind, sound)
        if self._log is not None:
            self._announce(self._log, node, tokens, keys)
        return anchor

    def free(self, holding: Holding) -> None:
        """Take back what no node and no sequence holds."""
        self._holdings.free(holding)

    def removed(self, node: Node) -> None:
        """Forget a node that no sequence can find any more."""
        self._unfound.pop(node, None)
        self.drop(node)

    def drop(self, node: Node) -> None:
        """Take its anchor from a node, if it has one."""
        anchor = self._of.pop(node, None)
        if anchor is None:
            return
        if self._pinned.get(node) is not anchor:
            self.free(anchor.holding)
        if self._log is not None:
            self._withdraw(self._log, node)

    def drop_unsound(self, node: Node) -> None:
        """Take the anchors that are not sound from the path to `node`."""
        step: Node | None = node
        while step is not None:
            parent, anchor = step.parent, self._of.get(step)
            if anchor is not None and not anchor.sound:
                self.drop(step)
            step = parent

    def _victim(self, frees: Callable[[Anchor], bool], kind: MarkKind | None = None) -> Anchor | None:
        """Return the anchor to drop, of those that free what is lacking, to a mark of this kind if it is for one."""
        rare = {each for each in TURN_KINDS if self._use.is_rare(each)}
        oldest = None
        for each in self._of.values():
            if each.node not in self._pinned and frees(each):
                if each.kind in rare or not rare:
                    return each
                oldest = oldest or each
        return None if kind in rare else oldest

    def _announce(self, log: KVEventLog, node: Node, tokens: Sequence[int], keys: Sequence[Key]) -> None:
        """Log the pages of the path to `node` that are not in the log."""
        size, path = self._page_size, []
        while node.parent is not None and not node.digest:
            path.append(node)
            node = node.parent
        if node.parent is None:
            node.digest = log.root_of(node.scope)
        for step in reversed(path if node.digest else []):
            parent, start = step.parent, (step.depth - 1) * size
            if parent is not None:
                others = None if keys is tokens else tuple(tokens[start : start + size])
                step.digest = log.stored(parent.digest, step.key, others, adapter=step.scope.adapter)

    def _withdraw(self, log: KVEventLog, node: Node) -> None:
        """Log that the pages up to `node` which no anchor is at or below can be found no more."""
        if node.digest and not self._of:
            log.cleared()  # in one event, in the place of one for each page
        while node.parent is not None and node.digest and node not in self._of and not _has_announced(node):
            if self._of:
                log.removed(node.digest)
            node.digest = 0
            node = node.parent


def _has_announced(node: Node) -> bool:
    return any(child.digest for child in node.children.values())
