"""The window tables of workers: what each page holds, and which pages of a sequence are there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import UNSET
from numaserve.workers.interface.protocol import SeqPlan, StepPlan, WindowWork
from numaserve.workers.interface.windows import PageLayout, WindowTable

ABSENT = -1  # in the place of a page
ANYTHING = -1  # is no digest


@dataclass
class _Slot:
    """The tables of a slot."""

    pages: list[list[int]]  # of each table, with ABSENT for the first ones
    firsts: list[int] = field(default_factory=list)


class SimulatedWindows:
    """Digests of tokens in pages, as the layers with windows keep keys and values.

    A sequence that reads a page of another, a page that is gone, or one that is written in the same plan is found.
    `violate` is called with what is wrong.
    """

    def __init__(self, tables: Sequence[WindowTable], layout: PageLayout, violate: Callable[[str], None]) -> None:
        self._tables = tables
        self._layout = layout
        self._violate = violate
        self._memory = [[[ANYTHING] * layout.page_size for _ in range(table.num_pages)] for table in tables]
        self._slots: dict[int, _Slot] = {}

    def run(self, plan: StepPlan, digests: Sequence[Sequence[int]]) -> None:
        """Run a plan that is open, and whose positions and draft tokens are known.

        `digests` are those of each sequence's positions; none of a sequence that goes on from another token than its
        own, whatever it reads.
        """
        each = list(zip(plan.seqs, digests, strict=True))
        for number in range(len(self._tables)):
            read = {cell for seq, own in each for cell in self._read(number, seq, own)}
            written = [cell for seq, own in each for cell in self._write(number, seq, own)]
            if len(set(written)) < len(written) or read.intersection(written):
                self._violate(f"plan {plan.step_id} writes to window pages that it reads, or writes twice")

    def pages(self, tails: Sequence[Sequence[int]]) -> list[list[list[int]]]:
        """Return the content of pages of each table."""
        return [[list(memory[page]) for page in tail] for memory, tail in zip(self._memory, tails, strict=True)]

    def set_pages(self, tails: Sequence[Sequence[int]], contents: list[list[list[int]]]) -> None:
        """Give pages of each table the content of others."""
        for memory, tail, content in zip(self._memory, tails, contents, strict=True):
            for page, cells in zip(tail, content, strict=True):
                memory[page] = list(cells)

    def spoil(self, plan: StepPlan) -> None:
        """Leave anything in what a plan writes that is open."""
        for number in range(len(self._tables)):
            for seq in plan.seqs:
                self._write(number, seq, ())

    def open(self, plan: StepPlan) -> None:
        """Change tables as a plan says, whose positions are those if all draft tokens are rejected."""
        works = list(plan.windows or [])
        order = [(work.index, work.window) for work in works]
        if (plan.windows is not UNSET and not works) or any(before >= after for before, after in pairwise(order)):
            self._violate(f"plan {plan.step_id} has no entries of windows, or not in order")
        for index, seq in enumerate(plan.seqs):
            if seq.init is not None:
                self._slots[seq.slot] = _Slot([[] for _ in self._tables], [0] * len(self._tables))
                if sum(work.index == index for work in works) != len(self._tables):
                    self._violate(f"a sequence of plan {plan.step_id} begins without a window table")
        for work in works:
            self._change(plan.seqs[work.index], work)

    def _change(self, seq: SeqPlan, work: WindowWork) -> None:
        slot = self._slots[seq.slot]
        pages, first = slot.pages[work.window], slot.firsts[work.window]
        limit = self._tables[work.window].window.first_page(seq.start, self._layout)
        if not first <= work.first <= limit or work.first % self._layout.block_pages:
            self._violate(f"the first page of a window table is {work.first}, after {first} and at most {limit}")
        if not (seq.init or work.pages or work.first > first):
            self._violate("an entry of windows changes nothing")
        if seq.init is not None:
            pages += [ABSENT] * work.first
        pages += work.pages
        if work.first > len(pages):
            self._violate("a window table is shorter than its absent pages")
        pages[: work.first] = [ABSENT] * work.first
        slot.firsts[work.window] = work.first

    def _read(self, number: int, seq: SeqPlan, own: Sequence[int]) -> list[tuple[int, int]]:
        """Check what the blocks hold that the first token reads, and return the cells."""
        if not own:
            return []
        first = self._tables[number].window.first_page(seq.start, self._layout) * self._layout.page_size
        cells = [self._cell(number, seq, position) for position in range(first, seq.start)]
        found = [ANYTHING if page == ABSENT else self._memory[number][page][at] for page, at in cells]
        if found != list(own[first : seq.start]):
            self._violate(f"a sequence would read in window table {number} what is not its own")
        return cells

    def _write(self, number: int, seq: SeqPlan, own: Sequence[int]) -> list[tuple[int, int]]:
        cells = []
        for position in range(seq.start, seq.start + seq.num_tokens):
            page, at = self._cell(number, seq, position)
            if page == ABSENT:
                self._violate(f"a sequence has no page of window table {number} to write to")
                continue
            self._memory[number][page][at] = own[position] if position < len(own) else ANYTHING
            cells.append((page, at))
        return cells

    def _cell(self, number: int, seq: SeqPlan, position: int) -> tuple[int, int]:
        pages, size = self._slots[seq.slot].pages[number], self._layout.page_size
        return pages[position // size] if position // size < len(pages) else ABSENT, position % size
