"""The pages of a window table."""

from collections.abc import Iterable, Sequence

from numaserve.server.scheduler.cache.page_allocator import PageAllocator


class WindowPages:
    """The pages of all sequences for the layers with one window. A page is free, or has a number of holders.

    `spare` pages are more than running sequences ever hold. Others may hold as many without giving them up.
    """

    def __init__(self, num_pages: int, spare: int = 0) -> None:
        self.num_pages = num_pages
        self.spare = spare
        self._allocator = PageAllocator(num_pages)
        self._holders = [0] * num_pages

    @property
    def num_free(self) -> int:
        """The number of free pages."""
        return self._allocator.num_free

    def take(self, count: int) -> list[int]:
        """Return free pages, which have one holder from now on. Raises `ValueError` when fewer are free."""
        pages = self._allocator.allocate(count)
        for page in pages:
            self._holders[page] = 1
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """Add a holder to pages that have one."""
        for page in pages:
            self._holders[page] += 1

    def let_go(self, pages: Iterable[int]) -> None:
        """Remove a holder of each page, and free the pages that have no other."""
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._allocator.free((page,))

    def frees_any(self, pages: Sequence[int]) -> bool:
        """Return whether one of these pages has only one holder."""
        return any(self._holders[page] == 1 for page in pages)
