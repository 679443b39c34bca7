"""The marks of running sequences, and the nodes that get what they hold."""

from collections.abc import Callable, Iterator

from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.holdings import Tail
from numaserve.server.scheduler.cache.mark_kinds import TURN_KINDS, MarkKind
from numaserve.server.scheduler.cache.marks import Mark, Marks
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree, ancestor
from numaserve.server.scheduler.errors import SchedulerIntegrityError
from numaserve.server.scheduler.images import outside_images
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence
from numaserve.server.scheduler.window_tables import WindowTables
from numaserve.workers.interface.protocol import StateWork

WORTH_PAGES = 2  # that an anchor must save to be made, or waited for, at the end of a shared prefix


class Marking:
    """Plans the marks of sequences. Marks are at the ends of pages:

    1. at the end of the pages that the tree has of a prompt, if there is no anchor: a prefix that two prompts share is
       likely to be shared again. One page is not worth a snapshot: mark 2 of the other prompt is often one page above;
    2. at the last page boundary at least half a page before the end of a prompt: templates change the last tokens of a
       prompt when the turn becomes history;
    3. every `tokens_between_marks` tokens of a prompt, while snapshots and window pages are free;
    4. at the end of each page of the output (the rolling mark), in a model with states. One snapshot of the sequence is
       overwritten each time, and goes to the tree at the release. Window pages alone need no such mark: the sequence
       still has those before its last page when it is released;
    5. at the end of the prefix that a waiting sequence shares with the prompt (see `PrefixWaits`).

    A mark that lacks a snapshot is left out; nothing fails.

    No mark comes after a draft token that is not verified. While draft tokens of the workers are in flight, the
    position itself is unknown, and no mark is planned.

    The rolling mark may come after a token whose id is not known yet. If the sequence is released before the id is
    known, the snapshot is free: it does not have the states of known tokens, and the older states are overwritten.
    """

    def __init__(
        self, config: SchedulerConfig, tree: RadixTree, anchors: Anchors, windows: WindowTables | None
    ) -> None:
        """Make marks for `anchors`, which hold pages of `windows` if there are window tables."""
        self._size = config.page_size
        self._whole_images = config.whole_images
        self._has_states = config.capacity.num_snapshots > 0
        self._between = config.tokens_between_marks
        self._tree = tree
        self._anchors = anchors
        self._windows = windows
        self.on_sound: Callable[[Sequence, Node], None] | None = None  # called with the node of a sound anchor

    def admitted(self, seq: Sequence, found: Node, matched: Node) -> None:
        """Begin the marks of a sequence that goes on from `found`, the deepest anchor on the path to `matched`."""
        seq.marks = marks = Marks()
        anchor = marks.began = self._anchors.use(found)
        if anchor is not None:
            marks.begin = anchor.holding.snapshot
            if not anchor.sound:
                marks.unproven.append(anchor)
        size, start = self._size, found.depth * self._size
        for position in range(start // self._between * self._between + self._between, seq.prompt_len, self._between):
            self._want(seq, marks, start, position, MarkKind.LONG)
        if matched.depth - found.depth >= WORTH_PAGES:
            self._want(seq, marks, start, matched.depth * size, MarkKind.PREFIX)
        self._want(seq, marks, start, (seq.prompt_len - size // 2) // size * size, MarkKind.PROMPT)

    def _want(self, seq: Sequence, marks: Marks, start: int, position: int, kind: MarkKind) -> None:
        """Want a mark at `position`, or before an image that a sequence cannot go on within, if that is after
        `start`."""
        if self._whole_images:
            position = outside_images(seq.request.images, position, self._size)
        if position > start:
            marks.want(position, kind)

    def plan(self, seq: Sequence, length: int, index: int) -> list[StateWork]:
        """Plan the marks in the next `length` known positions of the sequence, which is at `index` of the plan. Return
        its entry, if it needs one."""
        marks, at = _marks_of(seq), seq.position
        begin, marks.begin = marks.begin, -1
        stored = []
        if not at.drafts:
            stored = [*self._wanted(seq, marks, at.next, at.next + length)]
            marks.planned += stored
            stored += self._rolling(seq, marks, stored[-1].position if stored else at.next, at.next + length)
        if not self._has_states or (begin < 0 and not stored):
            return []
        return [StateWork(index, begin, [(mark.position, mark.holding.snapshot) for mark in stored])]

    def published(self, seq: Sequence) -> list[Node]:
        """Make the planned marks the anchors of their pages, as far as these are in the tree. Return the nodes."""
        marks, nodes = _marks_of(seq), []
        for mark in marks.planned:
            node = self._node(seq, mark.position // self._size)
            if node is None:
                marks.held.append(mark)
            elif self._give(seq, marks, mark, node):
                nodes.append(node)
        marks.planned.clear()
        return nodes

    def released(self, seq: Sequence, node: Node) -> None:
        """End the marks of a sequence whose full pages of known tokens end at `node`."""
        marks, seq.marks = _marks_of(seq), None
        for mark in marks.held if marks.rolling is None else [*marks.held, marks.rolling]:
            if mark.position > node.depth * self._size:
                self._anchors.free(mark.holding)
            else:
                self._give(seq, marks, mark, ancestor(node, mark.position // self._size))
        if 0 < marks.missed <= node.depth * self._size:
            self._anchors.made(ancestor(node, marks.missed // self._size), MarkKind.OUTPUT)
        if not self._has_states:
            self._leave(seq, marks, node)

    def trust(self, seq: Sequence, end: int) -> None:
        """Note that position `end` - 1 of a sequence gave numbers as logits."""
        marks = _marks_of(seq)
        marks.proven = max(marks.proven, end)
        for anchor in [*marks.unproven]:
            if anchor.node.depth * self._size <= end:
                anchor.sound = True
                marks.unproven.remove(anchor)
                if self.on_sound is not None:
                    self.on_sound(seq, anchor.node)

    def _leave(self, seq: Sequence, marks: Marks, node: Node) -> None:
        """Make the last full page of a sequence an anchor, of the window pages that it still has."""
        position = node.depth * self._size
        tails = self._tails(seq, position)
        if tails is None or position == 0:
            return
        kind = MarkKind.OUTPUT if position > seq.prompt_len else MarkKind.PROMPT
        holding = self._anchors.take(kind, tails)
        if holding is not None:
            self._give(seq, marks, Mark(position, holding, kind), node)

    def _tails(self, seq: Sequence, position: int) -> tuple[Tail, ...] | None:
        """Return the window pages that another sequence needs to go on at `position`; None if these are gone."""
        return () if self._windows is None else self._windows.before(seq, position)

    def _wanted(self, seq: Sequence, marks: Marks, start: int, end: int) -> Iterator[Mark]:
        """Make the wanted marks that are due, as far as there are snapshots for them."""
        while marks.wanted and marks.wanted[0].position <= end:
            position, kind = marks.wanted.pop(0)
            node = self._node(seq, position // self._size)
            if position <= start or (node is not None and self._anchors.at(node) is not None):
                continue
            tails = self._tails(seq, position)
            holding = None if tails is None else self._anchors.take(kind, tails)
            if holding is not None:
                yield Mark(position, holding, kind)
            elif node is not None:
                self._anchors.made(node, kind)

    def _rolling(self, seq: Sequence, marks: Marks, start: int, end: int) -> list[Mark]:
        """Return the mark at the end of the last page of output, if that ends after `start`."""
        position = end // self._size * self._size
        if not self._has_states or position <= max(start, seq.prompt_len):
            return []
        tails = self._tails(seq, position)
        if tails is None:
            return []
        if marks.rolling is None:
            holding = self._anchors.take(MarkKind.OUTPUT, tails)
        else:
            holding = self._anchors.moved(marks.rolling.holding, tails)
        if holding is None:
            marks.missed = position
            return []
        marks.rolling, marks.missed = Mark(position, holding, MarkKind.OUTPUT), 0
        return [marks.rolling]

    def _node(self, seq: Sequence, depth: int) -> Node | None:
        """Return the node of the sequence's page that ends `depth` pages after its beginning, if the tree has it."""
        if seq.node is not None and seq.node.depth >= depth:
            return ancestor(seq.node, depth)
        node = self._tree.match_prefix(seq.request.scope, seq.keys, depth)
        return node if node.depth == depth else None

    def _give(self, seq: Sequence, marks: Marks, mark: Mark, node: Node) -> bool:
        """Make a mark the anchor of its node. False where the node has one, or cannot be found any more."""
        sound = mark.position <= marks.proven
        anchor = self._anchors.give(mark, node, seq.tokens, seq.keys, sound=sound)
        if anchor is not None and not sound:
            marks.unproven.append(anchor)
        elif anchor is not None and self.on_sound is not None:
            self.on_sound(seq, node)
        if anchor is not None and marks.began is not None and mark.kind in TURN_KINDS:
            self._anchors.superseded(marks.began)
        return anchor is not None


def _marks_of(seq: Sequence) -> Marks:
    if seq.marks is None:
        raise SchedulerIntegrityError(f"sequence {seq.request_id!r} has no marks: its state is {seq.state.value}")
    return seq.marks
