"""The free list of pages."""

from collections.abc import Iterable


class PageAllocator:
    """A free list of the page numbers 0 .. `num_pages` - 1.

    A stack: the page freed last is given out first, since its memory is the likeliest to be in a cache still.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """The number of free pages."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages. Raises `ValueError` when fewer are free: callers make room first."""
        if count > len(self._free):
            raise ValueError(f"{count} pages were requested and {len(self._free)} are free")
        return [self._free.pop() for _ in range(count)]

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back."""
        self._free.extend(pages)
