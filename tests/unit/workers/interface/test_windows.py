"""The first page that a window still needs."""

import pytest
from numaserve.workers.interface.windows import Window


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
