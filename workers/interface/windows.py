"""The windows of attention, and the pages that a sequence no longer needs with one."""

from typing import NamedTuple

from numaserve.workers.interface.protocol import PAGE_SIZE

BLOCK_PAGES = 8  # attention reads whole blocks of pages


class Window(NamedTuple):
    """The positions that a token attends to: the last `tokens`, its own included, or 0 for all.

    With `aligned` these are the positions from the last multiple of `tokens` on.
    """

    tokens: int = 0
    aligned: bool = False

    def first(self, position: int) -> int:
        """Return the first position that the token at `position` attends to."""
        if self.tokens == 0:
            return 0
        return position // self.tokens * self.tokens if self.aligned else max(position - self.tokens + 1, 0)

    def first_page(self, position: int) -> int:
        """Return the first page that tokens from `position` on read: the first one of its block.

        With draft tokens the position is that of the first token if all of them are rejected.
        """
        return self.first(position) // (PAGE_SIZE * BLOCK_PAGES) * BLOCK_PAGES


class WindowTable(NamedTuple):
    """The page tables of all layers with one window, and the number of page ids that all sequences share."""

    window: Window
    num_pages: int
