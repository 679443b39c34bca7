"""The number of pages of window tables, and of slots where the operator leaves it out.

Layers with a window need few pages of a long sequence, so that the same memory holds several times as many tokens. A
window table has the pages that sequences in all slots hold at most. The rest is for anchors, from which other sequences
continue: an anchor holds the blocks of its window.

A window table takes at most three quarters of the pages that one table for all layers would have in the same memory.
Where slots need more, there is one table for all layers: window tables would hold hardly more tokens. A default number
of slots is halved before, unless short sequences in the fewer slots would leave memory unused.
"""

from collections.abc import Callable, Sequence

from numaserve.workers.interface.windows import BLOCK_PAGES, Window
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.needs import kv_bytes, pages_of, shared_step_tokens
from numaserve.workers.planning.options import DeploymentOptions

PoolPage = tuple[int, Sequence[int]]  # bytes of a page of all layers in a pool, and of the layers with each window
_ANCHOR_PAGES = 256  # pages of a long conversation, which needs one anchor
_SHORT_PAGES = 128  # pages of a short sequence
_LARGEST_SHARE = 0.75


def table_windows(options: DeploymentOptions, model: ModelConfig) -> list[Window]:
    """Return the windows that may have page tables of their own: none if the longest sequence is in a window, or if
    pages are used in one step only."""
    windows = model.decoder.windows if options.window_tables and not model.bidirectional else []
    longest = options.context_length or model.max_position
    return windows if all(window.tokens < longest for window in windows) else []


def leave_enough(options: DeploymentOptions, windows: Sequence[Window], pages: int) -> bool:
    """Return whether sequences in all slots leave enough of the memory of `pages` pages of all layers."""
    return all(_least(options, window) <= pages * _LARGEST_SHARE for window in windows)


def slots_for_windows(options: DeploymentOptions, pages: int, suffices: Callable[[int], bool]) -> int:
    """Return the largest number of slots that suffices, or the preferred one if none does."""
    slots = options.max_running_requests
    while options.may_run_fewer and slots // 2 >= max(pages // _SHORT_PAGES, 1) and not suffices(slots):
        slots //= 2
    return slots if suffices(slots) else options.max_running_requests


def divide_pages(
    options: DeploymentOptions, windows: Sequence[Window], pools: Sequence[PoolPage], pages: int, full: int
) -> tuple[int, tuple[int, ...]]:
    """Return the pages of layers without a window table, at most `full`, and those of each window table, in the memory
    of `pages` pages of all layers."""
    usual = min(pages, full)
    counts = [
        max(_least(options, window), min(_most(options, window, usual), int(usual * _LARGEST_SHARE)))
        for window in windows
    ]

    def left(pool: PoolPage, common: int) -> int:
        return pages * pool[0] - kv_bytes(*pool, [common, *counts])

    common = min([full, *(left(pool, 0) // page for pool in pools if (page := pool[0] - sum(pool[1])))])
    if common < full:
        return common, tuple(counts)
    # Window tables get what is left.
    shares = [(left(pool, full) // len(windows), pool[1]) for pool in pools]
    more = [min(share // parts[i] for share, parts in shares if parts[i]) for i in range(len(windows))]
    most = [_most(options, window, full) for window in windows]
    return full, tuple(max(count, min(count + m, top)) for count, m, top in zip(counts, more, most, strict=True))


def full_window_pages(options: DeploymentOptions, model: ModelConfig, pages: int) -> list[int]:
    """Return the pages of each window table next to `pages` pages with sequences of full length in all slots, for as
    many anchors. Empty: all layers use the same pages."""
    slots = options.max_running_requests
    counts = [table_pages(options, window, slots) for window in table_windows(options, model)]
    return counts if all(count < pages for count in counts) else []


def table_pages(options: DeploymentOptions, window: Window, anchors: int) -> int:
    """Return the pages of a window table with which sequences in all slots leave pages for `anchors`. There are no
    anchors without a prefix cache."""
    each = pages_of(window.tokens) + BLOCK_PAGES if options.prefix_cache else 0
    return _least(options, window) + anchors * each


def _least(options: DeploymentOptions, window: Window) -> int:
    return window.least_pages(options.max_running_requests, shared_step_tokens(options))


def _most(options: DeploymentOptions, window: Window, pages: int) -> int:
    """Return the pages of sequences in all slots, and of the anchors of `pages` other pages."""
    anchors = max(options.max_running_requests, pages // _ANCHOR_PAGES)
    return table_pages(options, window, anchors)
