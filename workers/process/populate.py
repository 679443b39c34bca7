"""Population of the KV cache's memory ahead of its use: while a worker is idle, and in part after each step."""

import ctypes
import logging
import mmap
import os
from collections.abc import Iterable, Sequence

from numaserve.workers.interface.protocol import SeqPlan, StepPlan, WindowWork

_MADV_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14
_PIECE_BYTES = 2 << 20  # a huge page: tenths of a millisecond, milliseconds in some virtual machines
PAGES_AHEAD = 256  # 8192 tokens
_PIECES_A_STEP = 4
_TIMES_USED = 2  # above 1, to catch up with a prompt that came before anything was touched

logger = logging.getLogger(__name__)


class Population:
    """Touches the memory of KV pages for the first time, in pieces, somewhat ahead of the highest page in use. The
    front end assigns pages in ascending order.

    Otherwise the steps would touch the memory: every layer's part of a token may be the first of a huge page, and the
    step then waits until all of these are cleared. Touching all memory was rejected, since it may never be needed.
    Touching it before the first request would delay that request, and a thread alongside the steps would take their
    cores.
    """

    def __init__(
        self,
        layers: Sequence[tuple[int, int]],
        num_pages: int,
        window: int | None = None,
        pages_ahead: int = PAGES_AHEAD,
    ) -> None:
        """Populate the layers, given address and bytes of each, which are divided into `num_pages` pages. These are
        pages of a window table, or with None of all sequences. At least `pages_ahead` are touched before they are
        used."""
        self._window = window
        self._ahead = pages_ahead
        self._layers = [(address, nbytes // num_pages) for address, nbytes in layers if nbytes > 0]  # bytes of a page
        self._num_pages = num_pages
        self._pages_a_piece = max(1, _PIECE_BYTES // max((nbytes for _, nbytes in self._layers), default=1))
        self._next_page = self._next_layer = 0
        self._wanted = min(num_pages, self._ahead) if self._layers else 0
        self._used = self._owed = 0  # assigned pages; backlog of `keep_up` in pages of one layer

    @property
    def is_behind(self) -> bool:
        """True if steps may soon reach memory that was not touched."""
        return self._next_page < min(self._wanted, self._used + self._ahead // 2)

    def follow(self, plan: StepPlan) -> None:
        """Note the pages that a plan assigns to sequences."""
        works: Iterable[SeqPlan | WindowWork] = plan.seqs
        if self._window is not None:
            works = (work for work in plan.windows or () if work.window == self._window)
        for work in works:
            if work.pages:
                self.use(max(work.pages))

    def use(self, page: int) -> None:
        """Note that `page` was assigned to a sequence."""
        if self._layers and page >= self._used:
            self._owed += _TIMES_USED * (page + 1 - self._used) * len(self._layers)
            self._used = page + 1
            self._wanted = max(self._wanted, min(self._num_pages, self._used + self._ahead))

    def keep_up(self) -> None:
        """Touch more memory than was assigned since the last call, so that steps without pauses do not reach untouched
        memory.

        In untouched memory, every layer's part would reach its next huge page in the same step. A long prompt may get
        all its pages at once; the next step does not wait for all of them. When population is far ahead this does
        nothing, since the next step is usually that of a prompt's first tokens.
        """
        for _ in range(_PIECES_A_STEP):
            if not self.is_behind:
                self._owed = 0
            if self._owed <= 0:
                return
            self._owed -= self._pages_a_piece
            if not self.advance():
                self._owed = 0

    def advance(self) -> bool:
        """Touch the next piece. Return False if there is nothing to touch now, or if the kernel cannot do it in
        advance."""
        if self._next_page >= self._wanted:
            return False
        address, page_bytes = self._layers[self._next_layer]
        begin, pages = (
            address + self._next_page * page_bytes,
            min(self._pages_a_piece, self._num_pages - self._next_page),
        )
        if not _populate(begin, begin + pages * page_bytes):
            self._layers, self._wanted = [], 0
            return False
        self._next_layer += 1
        if self._next_layer == len(self._layers):
            self._next_layer = 0
            self._next_page += pages
        return self._next_page < self._wanted


def _populate(begin: int, end: int) -> bool:
    begin -= begin % mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_POPULATE_WRITE) == 0:
        return True
    reason = os.strerror(ctypes.get_errno())
    logger.info("KV cache memory is populated on first use, not in advance: %s", reason)
    return False
