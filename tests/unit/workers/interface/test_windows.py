"""The first page that a window still needs."""

import pytest
from numaserve.workers.interface.windows import PageLayout, Window


@pytest.mark.parametrize(
    ("window", "position", "page"),
    [
        (Window(), 100_000, 0),
        (Window(128), 0, 0),
        (Window(128), 127, 0),
        (Window(128), 128 + 254, 0),
        (Window(128), 128 + 255, 8),
        (Window(1), 256, 8),
        (Window(4096), 4096 + 254, 0),
        (Window(4096), 4096 + 255, 8),
        (Window(8192, aligned=True), 8191, 0),
        (Window(8192, aligned=True), 8192, 256),
        (Window(8192, aligned=True), 16_383, 256),
        (Window(100, aligned=True), 299, 0),
        (Window(100, aligned=True), 300, 8),
    ],
)
def test_a_window_frees_whole_blocks_before_its_first_position(window: Window, position: int, page: int) -> None:
    assert window.first_page(position) == page


def test_small_pages_are_freed_by_small_blocks() -> None:
    window, layout = Window(6), PageLayout(page_size=4, block_pages=2)
    assert [window.first_page(position, layout) for position in (12, 13, 20, 21)] == [0, 2, 2, 4]


@pytest.mark.parametrize("window", [Window(128), Window(2047), Window(4096), Window(8192, aligned=True)], ids=str)
@pytest.mark.parametrize("drafts", [0, 16])
def test_the_pages_of_a_sequence_at_any_position_are_enough(window: Window, drafts: int) -> None:
    layout = PageLayout()
    held = [layout.pages_of(n + 1 + 2 * drafts) - window.first_page(n) for n in range(20_000)]
    prompt = [layout.pages_of(n + 512) - window.first_page(n) for n in range(20_000)]
    assert max(held) <= window.least_pages(1, 0, drafts)
    assert max(prompt) <= window.least_pages(1, 512, drafts)


@pytest.mark.parametrize("window", [Window(1), Window(128), Window(2047), Window(4096)], ids=str)
def test_a_tail_has_as_many_pages_as_the_worst_position_needs(window: Window) -> None:
    layout = PageLayout()
    ends = range(0, 20_000, layout.page_size)
    assert window.tail_pages() == max(layout.pages_of(end) - window.first_page(end) for end in ends)


def test_a_chunk_needs_no_longer_tail_than_a_window() -> None:
    layout, window = PageLayout(), Window(8192, aligned=True)
    ends = range(0, 20_000, layout.page_size)
    assert window.tail_pages() >= max(layout.pages_of(end) - window.first_page(end) for end in ends)
