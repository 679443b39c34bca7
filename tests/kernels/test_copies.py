"""Copies between ranges of memory and a buffer."""

import numpy as np
import pytest
from numaserve.kernels import gather, scatter

ROWS, COLUMNS = 5, 100


def test_ranges_are_copied_in_their_order_and_back() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (ROWS, COLUMNS), np.uint8)
    ranges = [(rows.ctypes.data + row * COLUMNS + row, COLUMNS - 2 * row) for row in (3, 0, 4)]
    expected = np.concatenate([rows[row, row : COLUMNS - row] for row in (3, 0, 4)])
    buffer = bytearray(len(expected))
    gather(ranges, memoryview(buffer))
    assert buffer == expected.tobytes()
    before = rows.copy()
    for address, nbytes in ranges:
        begin = address - rows.ctypes.data
        rows.reshape(-1)[begin : begin + nbytes] = 0
    scatter(memoryview(bytes(buffer)), ranges)
    assert (rows == before).all()


def test_ranges_of_other_sizes_than_the_buffer_are_refused() -> None:
    memory = np.zeros(COLUMNS, np.uint8)
    for ranges in ([(memory.ctypes.data, COLUMNS - 1)], [(memory.ctypes.data, -1), (memory.ctypes.data, COLUMNS + 1)]):
        with pytest.raises(ValueError, match=r"number of bytes|bytes of the buffer"):
            gather(ranges, memoryview(memory))
        with pytest.raises(ValueError, match=r"number of bytes|bytes of the buffer"):
            scatter(memoryview(memory), ranges)
