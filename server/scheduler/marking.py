"""Where running sequences store their states, and which nodes get the snapshots."""

from collections.abc import Iterator

from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.marks import Mark, Marks
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree
from numaserve.server.scheduler.errors import SchedulerIntegrityError
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence
from numaserve.workers.interface.protocol import StateWork

WORTH_PAGES = 2  # that an anchor must save to be made, or waited for, at the end of a shared prefix


class Marking:
    """Plans the marks of sequences. Marks are at the ends of pages:

    1. where the pages that were found in the tree end, if no state was found there: what has been shared once will be
       again. The mark that is wanted 16 tokens before a prompt's end is often one page before that place, and one page
       is not worth a snapshot;
    2. at least half a page before the prompt's end: a template changes the last tokens of a prompt when the turn
       becomes history;
    3. each `tokens_between_marks` tokens of a prompt, while snapshots are free;
    4. in the output, at the end of each page (the rolling mark). It is the sequence's own until its release, when all
       its tokens may be known: until then it is overwritten;
    5. where the prefix ends that a waiting sequence shares with the prompt (see `PrefixWaits`).

    A mark is left out, and nothing fails, where no snapshot is to be had.

    The states after a draft token that is not verified are nobody's, so a mark is never after one. While draft tokens
    that workers make are in flight, the position itself is not known, and no mark is planned.

    The rolling mark may be planned after a token whose id is not known yet. If the sequence is released before it is
    known, the states are of no known tokens: the snapshot is then free, and the one that it has overwritten is lost.
    """

    def __init__(self, config: SchedulerConfig, tree: RadixTree, anchors: Anchors) -> None:
        self._size = config.page_size
        self._between = config.tokens_between_marks
        self._tree = tree
        self._anchors = anchors

    def admitted(self, seq: Sequence, found: Node, matched: Node) -> None:
        """Begin the marks of a sequence that goes on from `found`, the deepest anchor on the path to `matched`."""
        seq.marks = marks = Marks()
        anchor = self._anchors.use(found)
        if anchor is not None:
            marks.begin = anchor.snapshot
            if not anchor.sound:
                marks.unproven.append(anchor)
        size, start = self._size, found.depth * self._size
        for position in range(start // self._between * self._between + self._between, seq.prompt_len, self._between):
            marks.want(position, evicts=False)
        if matched.depth - found.depth >= WORTH_PAGES:
            marks.want(matched.depth * size)
        before_end = (seq.prompt_len - size // 2) // size * size
        if before_end > start:
            marks.want(before_end)

    def plan(self, seq: Sequence, length: int, index: int) -> StateWork | None:
        """Plan the marks in the next `length` known positions of the sequence, which is at `index` of the plan."""
        marks, at = _marks_of(seq), seq.position
        begin, marks.begin = marks.begin, -1
        stored = []
        if not at.drafts:
            stored = [*self._wanted(seq, marks, at.next, at.next + length)]
            marks.planned += stored
            stored += self._rolling(seq, marks, stored[-1].position if stored else at.next, at.next + length)
        return (
            StateWork(index, begin, [(each.position, each.snapshot) for each in stored])
            if begin >= 0 or stored
            else None
        )

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
        for mark in [*marks.held, marks.rolling]:
            if mark is None:
                continue
            if mark.position > node.depth * self._size:
                self._anchors.free(mark.snapshot)
            else:
                self._give(seq, marks, mark, _ancestor(node, mark.position // self._size))

    def trust(self, seq: Sequence, end: int) -> None:
        """Note that position `end` - 1 of a sequence gave numbers as logits."""
        marks = _marks_of(seq)
        marks.proven = max(marks.proven, end)
        for anchor in [*marks.unproven]:
            if anchor.node.depth * self._size <= end:
                anchor.sound = True
                marks.unproven.remove(anchor)

    def _wanted(self, seq: Sequence, marks: Marks, start: int, end: int) -> Iterator[Mark]:
        """Take snapshots for the wanted marks that are due."""
        while marks.wanted and marks.wanted[0].position <= end:
            position, evicts = marks.wanted.pop(0)
            node = self._node(seq, position // self._size)
            if position <= start or (node is not None and self._anchors.at(node) is not None):
                continue
            snapshot = self._anchors.take(evicts=evicts)
            if snapshot is not None:
                yield Mark(position, snapshot)

    def _rolling(self, seq: Sequence, marks: Marks, start: int, end: int) -> list[Mark]:
        """Return the mark at the end of the last page of output, if that ends after `start`."""
        position = end // self._size * self._size
        if position <= max(start, seq.prompt_len):
            return []
        snapshot = self._anchors.take(evicts=True) if marks.rolling is None else marks.rolling.snapshot
        if snapshot is None:
            return []
        marks.rolling = Mark(position, snapshot)
        return [marks.rolling]

    def _node(self, seq: Sequence, depth: int) -> Node | None:
        """Return the node of the sequence's page that ends `depth` pages after its beginning, if the tree has it."""
        if seq.node is not None and seq.node.depth >= depth:
            return _ancestor(seq.node, depth)
        node = self._tree.match_prefix(seq.scope, seq.keys, depth)
        return node if node.depth == depth else None

    def _give(self, seq: Sequence, marks: Marks, mark: Mark, node: Node) -> bool:
        """Make a mark the anchor of its node. False where the node has one, or cannot be found any more."""
        sound = mark.position <= marks.proven
        anchor = self._anchors.give(mark.snapshot, node, seq.tokens, seq.keys, sound=sound)
        if anchor is not None and not sound:
            marks.unproven.append(anchor)
        return anchor is not None


def _ancestor(node: Node, depth: int) -> Node:
    while node.depth > depth and node.parent is not None:
        node = node.parent
    return node


def _marks_of(seq: Sequence) -> Marks:
    if seq.marks is None:
        raise SchedulerIntegrityError(f"sequence {seq.request_id!r} has no marks: its state is {seq.state.value}")
    return seq.marks
