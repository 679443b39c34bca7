"""KV pages are touched ahead of their use, in every layer, and no more of them than wanted."""

import ctypes
import mmap
from itertools import count

import pytest
from numaserve.workers.process import populate
from numaserve.workers.process.populate import Population

LAYERS, PAGES, PAGE_BYTES = 3, 40, 2 * mmap.PAGESIZE
LAYER_BYTES = PAGES * PAGE_BYTES
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(autouse=True)
def five_pages_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "_PIECE_BYTES", 2 * PAGE_BYTES)


def cache() -> mmap.mmap:
    memory = mmap.mmap(-1, LAYERS * LAYER_BYTES)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def population(memory: mmap.mmap) -> Population:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    layers = [(address + layer * LAYER_BYTES, LAYER_BYTES) for layer in range(LAYERS)]
    return Population(layers, PAGES, pages_ahead=5)


def resident(memory: mmap.mmap, first: int, end: int) -> list[int]:
    """For each layer, how many KV pages of first..end are in memory whole.

    The page tables are asked: faults counted while writing would have those of the interpreter among them.
    """
    pages_of_layer = LAYER_BYTES // mmap.PAGESIZE
    flags = (ctypes.c_ubyte * (LAYERS * pages_of_layer))()
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), flags) == 0
    parts = PAGE_BYTES // mmap.PAGESIZE
    starts = [[layer * pages_of_layer + page * parts for page in range(first, end)] for layer in range(LAYERS)]
    return [sum(all(flag & 1 for flag in flags[at : at + parts]) for at in layer) for layer in starts]


def touch_all(ahead: Population) -> int:
    return next(n for n in count(1) if not ahead.advance())


def test_pages_are_touched_in_every_layer_and_no_others() -> None:
    with cache() as memory:
        pieces = touch_all(population(memory))
        assert pieces == 3 * LAYERS  # of two pages each
        assert resident(memory, 0, 6) == resident(memory, 0, PAGES) == [6] * LAYERS


def test_more_are_touched_as_pages_come_into_use_up_to_the_last() -> None:
    with cache() as memory:
        ahead = population(memory)
        touch_all(ahead)
        assert not ahead.advance()
        ahead.use(10)
        touch_all(ahead)
        assert resident(memory, 0, 16) == [16] * LAYERS
        ahead.use(3)
        assert not ahead.advance()
        ahead.use(PAGES - 1)
        touch_all(ahead)
        assert resident(memory, 16, PAGES) == [PAGES - 16] * LAYERS


def test_steps_without_a_pause_do_not_catch_up_with_what_is_touched() -> None:
    with cache() as memory:
        ahead = population(memory)
        for page in range(12):
            ahead.use(page)
            ahead.keep_up()
        assert resident(memory, 12, 14) == [2] * LAYERS
        assert resident(memory, 18, PAGES) == [0] * LAYERS  # and no more than is wanted


def test_far_ahead_no_step_is_held_up() -> None:
    with cache() as memory:
        ahead = population(memory)
        touch_all(ahead)
        ahead.use(2)  # of five that are touched
        ahead.keep_up()
        assert touch_all(ahead) == LAYERS  # of two pages each, nothing was touched before
        assert not ahead.is_behind
        ahead.use(6)  # of eight
        assert ahead.is_behind
        for _ in range(20):
            ahead.keep_up()
        assert not ahead.is_behind
        assert resident(memory, 8, 10) == [2] * LAYERS
        assert resident(memory, 10, 12) == [0] * LAYERS


def test_pages_that_are_given_all_at_once_hold_no_step_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "_PIECES_A_STEP", 2)
    with cache() as memory:
        ahead = population(memory)
        ahead.use(19)
        ahead.keep_up()
        assert touch_all(ahead) == (25 + 1) // 2 * LAYERS - 2
    with cache() as memory:
        ahead = population(memory)
        ahead.use(19)
        for _ in range(20):  # steps that take no more pages
            ahead.keep_up()
        assert resident(memory, 0, 20) == [20] * LAYERS


def test_nothing_is_touched_after_a_step_that_has_taken_no_page() -> None:
    with cache() as memory:
        ahead = population(memory)
        ahead.keep_up()
        assert resident(memory, 0, PAGES) == [0] * LAYERS


def test_no_memory_is_no_work() -> None:
    ahead = Population([(0, 0)] * LAYERS, PAGES, pages_ahead=5)
    ahead.use(3)
    ahead.keep_up()
    assert not ahead.advance()
    assert not ahead.is_behind


def test_a_kernel_that_cannot_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with cache() as memory:
        ahead = population(memory)
    with caplog.at_level("INFO"):  # the memory is no longer there
        assert not ahead.advance()
        ahead.use(20)
        assert not ahead.advance()
    assert len(caplog.records) == 1
