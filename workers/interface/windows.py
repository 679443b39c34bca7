"""The windows of attention, and the pages that a sequence no longer needs with one."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from numaserve.workers.interface.capacity import PAGE_SIZE, Capacity
from numaserve.workers.interface.drafters import MAX_DRAFTS

BLOCK_PAGES = 8  # attention reads whole blocks of pages


class PageLayout(NamedTuple):
    """The tokens of a page and the pages of a block."""

    page_size: int = PAGE_SIZE  # smaller in tests only
    block_pages: int = BLOCK_PAGES  # smaller in tests only

    def pages_of(self, tokens: int) -> int:
        """Return the number of pages that the first tokens of a sequence take."""
        return -(-tokens // self.page_size)


LAYOUT = PageLayout()


class Window(NamedTuple):
    """The positions that a token attends to: the last `tokens`, its own included, or 0 for all.

    With `aligned` these are the positions from the last multiple of `tokens` on. With `bidirectional` they are
    `tokens` positions on either side, or all of a sequence, which is then whole in a step. With `images` a token of an
    image sees the later ones of the same image too, and an image is whole in a step.
    """

    tokens: int = 0
    aligned: bool = False
    bidirectional: bool = False
    images: bool = False

    def first(self, position: int) -> int:
        """Return the first position that the token at `position` attends to."""
        if self.tokens == 0:
            return 0
        if self.aligned:
            return position // self.tokens * self.tokens
        return max(position - self.tokens + (not self.bidirectional), 0)

    def end(self, position: int, count: int) -> int:
        """Return the end of what the token at `position` of a sequence of `count` tokens attends to."""
        if not self.bidirectional:
            return position + 1
        return min(position + self.tokens + 1, count) if self.tokens else count

    def first_page(self, position: int, layout: PageLayout = LAYOUT) -> int:
        """Return the first page that tokens from `position` on read: the first one of its block.

        With draft tokens the position is that of the first token if all of them are rejected.
        """
        return self.first(position) // (layout.page_size * layout.block_pages) * layout.block_pages

    def tail_pages(self, layout: PageLayout = LAYOUT) -> int:
        """Return the most pages that a sequence needs to continue at the end of a page."""
        # The first position is at most `tokens` - 1 before the next one, and a block less one after its first page.
        return (self.tokens + layout.page_size * layout.block_pages - 2) // layout.page_size

    def least_pages(
        self, sequences: int, step_tokens: int, max_drafts: int = MAX_DRAFTS, layout: PageLayout = LAYOUT
    ) -> int:
        """Return the most pages that `sequences` running sequences hold.

        A sequence whose next position is n holds the pages from `first_page(n)` to its last planned position. At most
        `tokens` - 1 positions and a block less one are between the first position of these pages and n. Draft tokens of
        two plans may follow, or a part of a prompt. All parts in a plan have `step_tokens` tokens, and each part may
        begin in one more page.
        """
        behind = self.tokens + layout.page_size * layout.block_pages - 2
        each = max(layout.pages_of(behind) + 1, layout.pages_of(behind + 1 + 2 * max_drafts))
        return sequences * each + layout.pages_of(step_tokens)


ALL = Window()


def distinct(windows: Iterable[Window]) -> list[Window]:
    """Return the windows that have a page table, each once and in the order of their first layers."""
    return list(dict.fromkeys(window for window in windows if window.tokens and not window.bidirectional))


class WindowTable(NamedTuple):
    """The page tables of all layers with one window, and the number of page ids that all sequences share."""

    window: Window
    num_pages: int


def window_tables(windows: Sequence[Window], capacity: Capacity) -> tuple[WindowTable, ...]:
    """Return the tables of `windows`, each with its number of pages."""
    return tuple(WindowTable(*each) for each in zip(windows, capacity.window_pages, strict=True))
