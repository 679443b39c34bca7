"""Defects in the pages of layers with windows: who holds them, and for how long."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from typing import Any

from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.holdings import Holding, Holdings, Tail
from numaserve.server.scheduler.cache.mark_kinds import MarkKind
from numaserve.server.scheduler.cache.marks import Mark, Marks
from numaserve.server.scheduler.cache.radix_tree import Node
from numaserve.server.scheduler.cache.window_pages import WindowPages
from numaserve.server.scheduler.marking import Marking
from numaserve.server.scheduler.sequence import Sequence
from numaserve.server.scheduler.window_tables import WindowTables
from numaserve.workers.interface.protocol import WindowWork
from numaserve.workers.interface.windows import PageLayout, Window

from tests.simulation.defects.registry import defect


@defect(Window, "first_page")
def pages_are_given_back_one_by_one(
    _right: Callable[..., int], window: Window, position: int, layout: PageLayout
) -> int:
    """The rest of the block is read, and may be another sequence's."""
    return window.first(position) // layout.page_size


@defect(WindowTables, "begin_step", first_seed=115)
def a_window_is_passed_that_draft_tokens_may_come_back_to(
    right: Callable[..., None], tables: WindowTables, running: ListOf[Sequence]
) -> None:
    """The position after all draft tokens in flight counts."""
    drafts = [(seq, seq.position.drafts) for seq in running]
    for seq, _ in drafts:
        seq.position.drafts = 0
    right(tables, running)
    for seq, count in drafts:
        seq.position.drafts = count


@defect(WindowTables, "plan")
def a_plan_gives_out_what_it_still_reads(
    right: Callable[..., list[WindowWork]],
    tables: WindowTables,
    seq: Sequence,
    length: int,
    *arguments: Any,
    begins: bool,
) -> list[WindowWork]:
    """The part that is being planned is taken to be computed already."""
    seq.position.computed += length
    tables.begin_step([seq])
    seq.position.computed -= length
    return right(tables, seq, length, *arguments, begins=begins)


@defect(WindowTables, "began")
def one_that_begins_from_an_anchor_holds_nothing(
    right: Callable[..., None], tables: WindowTables, seq: Sequence, tails: ListOf[Tail]
) -> None:
    """Its pages go with the anchor."""
    right(tables, seq, tails)
    for pool, tail in zip(tables._pools, tails, strict=False):
        for page in tail.pages:
            pool._holders[page] -= 1


@defect(WindowTables, "before")
def an_anchor_has_one_block_too_few(
    right: Callable[..., tuple[Tail, ...] | None], tables: WindowTables, seq: Sequence, position: int
) -> tuple[Tail, ...] | None:
    """The first block of the window is taken to be over."""
    tails = right(tables, seq, position)
    block = tables._layout.block_pages
    return tails and tuple(
        Tail(tail.first + block, tail.pages[block:]) if len(tail.pages) > block else tail for tail in tails
    )


@defect(Marking, "_leave", first_seed=3540)
def window_pages_of_unknown_tokens_are_found(
    _right: Callable[..., None], marking: Marking, seq: Sequence, marks: Marks, node: Node
) -> None:
    """The window before the last planned page goes to the last page of known tokens."""
    size = marking._size
    tails = marking._tails(seq, seq.position.computed // size * size)
    holding = None if tails is None else marking._anchors.take(MarkKind.OUTPUT, tails)
    if holding is not None:
        marking._give(seq, marks, Mark(node.depth * size, holding, MarkKind.OUTPUT), node)


@defect(Holdings, "free")
def pages_of_an_anchor_are_lost(right: Callable[..., None], holdings: Holdings, holding: Holding) -> None:
    """They stay held by an anchor that is gone."""
    right(holdings, holding._replace(tails=tuple(Tail(tail.first, ()) for tail in holding.tails)))


@defect(WindowPages, "let_go")
def pages_are_free_while_others_hold_them(_right: Callable[..., None], pool: WindowPages, pages: Iterable[int]) -> None:
    """The first holder that lets go frees them."""
    for page in pages:
        if pool._holders[page]:
            pool._holders[page] = 0
            pool._allocator.free((page,))


@defect(Anchors, "give_up_pages", first_seed=8)
def anchors_keep_their_pages(_right: Callable[..., bool], _anchors: Anchors, _window: int) -> bool:
    """Sequences that run find none."""
    return False
