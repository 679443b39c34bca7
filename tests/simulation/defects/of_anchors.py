"""Defects in what sequences go on from: marks, snapshots and anchors."""

from collections.abc import Callable
from typing import Any

from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.mark_kinds import MarkKind
from numaserve.server.scheduler.cache.marks import Anchor, Mark
from numaserve.server.scheduler.cache.radix_tree import Node
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.marking import Marking
from numaserve.server.scheduler.prefix_waits import PrefixWaits
from numaserve.server.scheduler.sequence import Sequence, SequenceState

from tests.simulation.defects.registry import defect


@defect(Marking, "admitted", first_seed=18)
def a_snapshot_is_found_before_it_is_stored(
    right: Callable[..., None], marking: Marking, seq: Sequence, found: Node, matched: Node
) -> None:
    """If the sequence leaves before the plan that would store it, it never is."""
    right(marking, seq, found, matched)
    if marking._windows is None and matched is not found and marking._node(seq, matched.depth) is matched:
        holding = marking._anchors.take(MarkKind.PREFIX)
        if holding is not None:
            mark = Mark(matched.depth * marking._size, holding, MarkKind.PREFIX)
            marking._anchors.give(mark, matched, seq.tokens, seq.keys, sound=False)


@defect(KVCache, "_usable")
def more_pages_are_found_than_states(
    _right: Callable[..., Node], _cache: KVCache, _seq: Sequence, matched: Node
) -> Node:
    """A sequence goes on after all pages that it has found."""
    return matched


@defect(Anchors, "_victim", first_seed=140)
def shallow_anchors_lose_their_snapshots_first(
    _right: Callable[..., Any], anchors: Anchors, frees: Callable[[Anchor], bool], *_kind: MarkKind
) -> Anchor | None:
    """Prefixes that most sequences share are evicted first."""
    others = [each for each in anchors._of.values() if frees(each)]
    return min(others, key=lambda each: each.node.depth, default=None)


@defect(Anchors, "deepest", first_seed=70)
def a_whole_path_is_used(right: Callable[..., Node], anchors: Anchors, node: Node) -> Node:
    """Anchors from which no sequence begins are kept in the place of others."""
    found = right(anchors, node)
    step: Node | None = found
    while step is not None:
        if step in anchors._of:
            anchors._of.move_to_end(step)
        step = step.parent
    return found


@defect(Marking, "_rolling", first_seed=470)
def a_rolling_mark_counts_as_it_was(
    right: Callable[..., list[Mark]], marking: Marking, seq: Sequence, *arguments: Any
) -> list[Mark]:
    """The states of a later position are found at the first one."""
    before = None if seq.marks is None else seq.marks.rolling
    rolled = right(marking, seq, *arguments)
    if seq.marks is not None and before is not None:
        seq.marks.rolling = before
    return rolled


@defect(Marking, "released", first_seed=84)
def states_after_an_unknown_token_are_found(
    right: Callable[..., None], marking: Marking, seq: Sequence, node: Node
) -> None:
    """The last rolling mark goes to the last page of known tokens."""
    if seq.marks is not None and seq.marks.rolling is not None:
        seq.marks.rolling = seq.marks.rolling._replace(position=node.depth * marking._size)
    right(marking, seq, node)


@defect(Anchors, "use", first_seed=18)
def a_plan_stores_where_it_begins(right: Callable[..., Any], anchors: Anchors, node: Node) -> Any:
    """A snapshot with which a sequence begins is given out again by the same plan."""
    anchor = right(anchors, node)
    if anchor is not None and anchors._holdings.snapshots is not None:
        anchors._holdings.snapshots._named.discard(anchor.holding.snapshot)
        anchors._of.move_to_end(node, last=False)
    return anchor


@defect(Marking, "plan", first_seed=18)
def marks_are_made_while_drafts_are_in_flight(
    right: Callable[..., Any], marking: Marking, seq: Sequence, length: int, index: int
) -> Any:
    """The position after the last answer is taken for the position after the next one."""
    drafts, seq.position.drafts = seq.position.drafts, 0
    seq.position.computed -= drafts
    work = right(marking, seq, length, index)
    seq.position.drafts = drafts
    seq.position.computed += drafts
    return work


@defect(Anchors, "removed")
def anchors_outlive_their_pages(_right: Callable[..., None], _anchors: Anchors, _node: Node) -> None:
    """Their snapshots are lost."""


@defect(PrefixWaits, "settle", first_seed=430)
def who_waits_for_one_that_has_ended_waits_on(right: Callable[..., None], waits: PrefixWaits) -> None:
    """The prefix is never computed."""
    waits._waits, ended = (
        [each for each in waits._waits if (each.computing.state is SequenceState.FINISHED) is is_ended]
        for is_ended in (False, True)
    )
    right(waits)
    waits._waits += ended
