"""The window tables of running sequences."""

from collections.abc import Sequence as ListOf

from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.holdings import Tail
from numaserve.server.scheduler.cache.window_pages import WindowPages
from numaserve.server.scheduler.errors import SchedulerIntegrityError
from numaserve.server.scheduler.sequence import OpenTail, SchedulerConfig, Sequence, WindowStats
from numaserve.workers.interface.protocol import WindowWork


class WindowTables:
    """The window tables of running sequences, and where they take their pages from.

    A sequence has an `OpenTail` of each table: the pages from the first one that its next token reads to the last
    planned position. A plan takes the pages of its own part of a prompt only, and the next plan lets go of whole blocks
    before the window of the next position, or of the last certain one while draft tokens are in flight. So the pages
    that a plan lets go of are free before it takes any. The plan in flight may still read them, but runs earlier than
    the plan that gives them to another sequence (see `Scheduler`).

    No sequence gives way for a window page. The tables have pages enough for all running sequences
    (`Window.least_pages`); what these do not need at the moment is held by anchors, and by marks of running sequences
    that will become anchors. Both give way. Fewer pages were rejected: sequences would have to be retracted, or parts
    of prompts cut, for the sake of a cache that takes no more memory than the common one then.
    """

    def __init__(self, config: SchedulerConfig, pools: ListOf[WindowPages], anchors: Anchors | None) -> None:
        self._windows = config.windows
        self._layout = config.page_layout
        self._pools = pools
        self._anchors = anchors
        self._running: ListOf[Sequence] = ()

    def begin_step(self, running: ListOf[Sequence]) -> None:
        """Begin a plan for running sequences: take the pages that no token of it and of later plans reads."""
        self._running = running
        for seq in running:
            position = seq.position.next
            for window, pool, tail in zip(self._windows, self._pools, seq.tails, strict=True):
                passed = window.first_page(position, self._layout) - tail.first
                if passed > 0:
                    pool.let_go(tail.pages[:passed])
                    del tail.pages[:passed]
                    tail.first += passed

    def began(self, seq: Sequence, tails: ListOf[Tail]) -> None:
        """Let a sequence begin with the window pages of an anchor, or with none at the first token."""
        seq.tails = [OpenTail(tail.first, list(tail.pages)) for tail in tails or [Tail(0, ())] * len(self._pools)]
        for pool, open_tail in zip(self._pools, seq.tails, strict=True):
            pool.hold(open_tail.pages)

    def plan(self, seq: Sequence, length: int, index: int, *, begins: bool) -> list[WindowWork]:
        """Give a sequence pages for its next `length` positions, draft tokens included. Return what changes in its
        tables, for the sequence at `index` of the plan in the making, which begins in a slot or goes on."""
        works = []
        pages_of_all = self._layout.pages_of(seq.position.computed + length)
        for number, tail in enumerate(seq.tails):
            lacking = pages_of_all - tail.end
            pages = self._take(number, lacking) if lacking > 0 else []
            tail.pages += pages
            if begins or pages or tail.first > tail.planned_first:
                works.append(WindowWork(index, number, tail.first, list(tail.pages) if begins else pages))
                tail.planned_first = tail.first
        return works

    def before(self, seq: Sequence, position: int) -> tuple[Tail, ...] | None:
        """Return what another sequence needs to go on at `position`, the end of a page; None if the sequence has let go
        of it."""
        depth = position // self._layout.page_size
        tails = []
        for window, tail in zip(self._windows, seq.tails, strict=True):
            first = window.first_page(position, self._layout)
            if first < tail.first or depth > tail.end:
                return None
            tails.append(Tail(first, tuple(tail.pages[first - tail.first : depth - tail.first])))
        return tuple(tails)

    def lacking(self, position: int) -> tuple[Tail, ...]:
        """Return what `before` would return, with a 0 for each page."""
        depth = position // self._layout.page_size
        firsts = [window.first_page(position, self._layout) for window in self._windows]
        return tuple(Tail(first, (0,) * (depth - first)) for first in firsts)

    def released(self, seq: Sequence) -> None:
        """Take all window pages from a sequence."""
        for pool, tail in zip(self._pools, seq.tails, strict=True):
            pool.let_go(tail.pages)
        seq.tails = []

    def stats(self) -> WindowStats:
        """Return counters of the pages of all tables."""
        free, total = (
            sum(each) for each in zip(*((pool.num_free, pool.num_pages) for pool in self._pools), strict=True)
        )
        active = sum(
            len({page for seq in self._running for page in seq.tails[n].pages}) for n in range(len(self._pools))
        )
        return WindowStats(free, total - free - active, active)

    def _take(self, number: int, count: int) -> list[int]:
        pool = self._pools[number]
        while pool.num_free < count:
            anchors = self._anchors
            if anchors is None or not (anchors.give_up_pages(number) or self._give_up_mark(anchors)):
                raise SchedulerIntegrityError(f"window table {number}: running sequences hold more pages than planned")
        return pool.take(count)

    def _give_up_mark(self, anchors: Anchors) -> bool:
        """Free a mark of a running sequence whose page is not in the tree. False if there is none."""
        for marks in (seq.marks for seq in self._running if seq.marks is not None):
            mark = marks.held.pop(0) if marks.held else marks.rolling
            if mark is not None:
                anchors.free(mark.holding)
                marks.rolling = None if mark is marks.rolling else marks.rolling
                return True
        return False
