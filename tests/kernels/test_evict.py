"""Evicted memory keeps its bytes, and is read from memory."""

import numpy as np
from numaserve.kernels import PackedMatrix, Team, evict, read_seconds


def ones(n: int, k: int) -> PackedMatrix:
    """A matrix whose bytes are ones."""
    matrix = PackedMatrix(n, k)
    np.frombuffer(matrix.buffer(), np.uint8).fill(1)
    return matrix


def test_evicted_memory_keeps_its_bytes() -> None:
    matrix = ones(64, 96)
    before, first = bytes(matrix.buffer()), matrix.address
    # A range may begin and end within a line, and have fewer lines than there are threads.
    evict(Team([-1, -1]), [(first, matrix.nbytes), (first + 3, 1), (first + 63, 130), (first, 0)])
    assert bytes(matrix.buffer()) == before


def test_evicted_memory_takes_longer_to_read() -> None:
    team, matrix = Team([-1]), ones(64, 4096)  # half a megabyte, which a second-level cache holds
    memory = [(matrix.address, matrix.nbytes)]

    def read(*, evicted: bool) -> float:
        if evicted:
            evict(team, memory)
        return read_seconds(team, memory, fetch_ahead=True)

    cached, fetched = (min(read(evicted=evicted) for _ in range(50)) for evicted in (False, True))
    assert fetched > 1.5 * cached
